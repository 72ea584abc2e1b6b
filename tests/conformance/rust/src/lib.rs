//! Starts the program `nats-server` of the PATH for async-nats's tests, which call these functions by these names.
//!
//! Rules: a server has a folder of its own for its store and its log, and ends when it is dropped. It is ready once its
//! log tells the port of clients.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

const READY: Duration = Duration::from_secs(40);
const LOOK: Duration = Duration::from_millis(20);
const FORMING: Duration = Duration::from_secs(2);
const LISTENING: &str = "Listening for client connections on ";

static NUMBERS: AtomicUsize = AtomicUsize::new(0);

pub struct Server {
    config: String,
    port: u16,
    others: Vec<String>,
    folder: PathBuf,
    child: Child,
}

pub struct Cluster {
    pub servers: Vec<Server>,
}

pub fn run_server(config: &str) -> Server {
    Server::start(config, None, Vec::new())
}

pub fn run_server_with_port(config: &str, port: Option<&str>) -> Server {
    Server::start(config, port, Vec::new())
}

pub fn run_cluster(config: &str) -> Cluster {
    let routes: Vec<u16> = (0..3).map(|_| free_port()).collect();
    let urls: Vec<String> = routes.iter().map(|port| format!("nats://127.0.0.1:{port}")).collect();
    let servers = (0..3)
        .map(|number| {
            let own = ["--cluster", &urls[number], "--routes", &urls.join(",")];
            let named = ["--cluster_name", "cluster", "-n", ["node1", "node2", "node3"][number]];
            let others = own.iter().chain(named.iter()).map(|part| part.to_string()).collect();
            Server::start(config, None, others)
        })
        .collect();
    sleep(FORMING);
    Cluster { servers }
}

impl Cluster {
    pub fn client_url(&self) -> String {
        self.servers[0].client_url()
    }
}

impl Server {
    fn start(config: &str, port: Option<&str>, others: Vec<String>) -> Server {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("nats-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let child = spawn(config, port.unwrap_or("-1"), &others, &folder);
        let mut server = Server { config: config.to_string(), port: 0, others, folder, child };
        server.port = server.wait_ready();
        server
    }

    fn wait_ready(&mut self) -> u16 {
        let began = Instant::now();
        while began.elapsed() < READY {
            let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            if let Some(line) = log.lines().find(|line| line.contains(LISTENING)) {
                return line.rsplit(':').next().unwrap().trim().parse().unwrap();
            }
            assert!(self.child.try_wait().unwrap().is_none(), "nats-server has ended: {log}");
            sleep(LOOK);
        }
        panic!("nats-server is not ready");
    }

    pub fn restart(&mut self) {
        self.end();
        fs::remove_file(self.folder.join("log")).unwrap();
        self.child = spawn(&self.config, &self.port.to_string(), &self.others, &self.folder);
        self.wait_ready();
    }

    pub fn client_url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    pub fn client_port(&self) -> u16 {
        self.port
    }

    fn end(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
        fs::remove_dir_all(&self.folder).ok();
    }
}

fn spawn(config: &str, port: &str, others: &[String], folder: &PathBuf) -> Child {
    let mut command = Command::new("nats-server");
    command.arg("--store_dir").arg(folder.join("store")).arg("-l").arg(folder.join("log"));
    command.args(["-a", "127.0.0.1", "-p", port]).args(others);
    if !config.is_empty() {
        command.arg("-c").arg(config);
    }
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program nats-server")
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
