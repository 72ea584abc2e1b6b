"""Brokers that speak TLS and have everybody log in: what Spark does there, what is refused, and what nobody sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import AnalysisException
from pyspark.sql import SparkSession

import penstock
from penstock.access import Rule
from penstock.client.users import rule, token_credential
from penstock.spark.runtime import java
from tests.broker_process import BrokerProcess, running_broker
from tests.certificates import Authority
from tests.extent import needs_time

pytestmark = needs_time

TIMEOUT_S = 280
RULES = {
    "etl": (rule("read", stream="orders"), rule("append", stream="big-orders")),
    "counting": (rule("read", stream="orders"), rule("commit_offsets", stream="orders")),
    "stranger": (rule("append", stream="orders"),),
    "european": (rule("read", subject="orders.eu"), rule("append", subject="orders.eu")),
}


@dataclass(frozen=True)
class Guarded:
    """A broker with TLS and users, the files of both, and an administrator."""

    broker: BrokerProcess
    ca: Path
    tokens: dict[str, Path]
    admin: penstock.Client

    def options(self, user: str, **more: Any) -> dict[str, Any]:
        """What Spark needs to reach it as that user."""
        credentials = str(self.tokens[user])
        places = {"servers": self.broker.client_address, "penstock.tls.ca": str(self.ca)}
        return {**places, "penstock.credentials": credentials, **more}

    def secret(self, user: str) -> str:
        """The part of the user's token that nobody is to see."""
        return self.tokens[user].read_text().strip().rpartition("_")[2]

    def count(self, stream: str) -> int:
        """The messages that are in a stream's partitions."""
        partitions = self.admin.stream(stream).partitions
        return sum(self.admin.offsets(stream, "latest", partition=int(one.partition)).offset for one in partitions)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority(folder / "certs")
    pair = authority.issue("broker")
    data = folder / "data"
    with running_broker(data, "--auth", "--tls-cert", str(pair.cert), "--tls-key", str(pair.key)) as broker:
        credentials = penstock.Credentials.parsed((data / "admin.credentials").read_text())
        tls = penstock.TlsOptions(ca=authority.ca)
        with penstock.connect(broker.client_address, tls=tls, credentials=credentials) as admin:
            admin.create_stream("orders", "orders.*")
            admin.create_stream("big-orders", "big-orders", partitions=2)
            data_of = {"orders.eu": range(60), "orders.us": range(60, 100)}
            rows = [{"subject": on, "value": b"%d" % one} for on, numbers in data_of.items() for one in numbers]
            admin.append("orders", rows)
            tokens = {user: folder / f"{user}.token" for user in RULES}
            for user, file in tokens.items():
                _add(admin, user, RULES[user], file)
            yield Guarded(broker, authority.ca, tokens, admin)
        assert broker.stop() == 0, broker.said


def _add(admin: penstock.Client, user: str, rules: tuple[Rule, ...], file: Path) -> None:
    made = token_credential(user)
    admin.users.create(user, made, rules=rules)
    assert made.token is not None
    file.write_text(made.token + "\n")


def reading(spark: SparkSession, options: dict[str, Any]) -> int:
    return spark.read.format("penstock").options(**options).load().count()


def writing(spark: SparkSession, options: dict[str, Any]) -> None:
    rows = spark.range(10).selectExpr("cast(id as string) as value")
    rows.write.format("penstock").options(**options).mode("append").save()


def streaming(spark: SparkSession, source: dict[str, Any], sink: dict[str, Any], checkpoint: Path) -> None:
    rows = spark.readStream.format("penstock").options(startingOffsets="earliest", **source).load().select("value")
    to = rows.writeStream.format("penstock").options(checkpointLocation=str(checkpoint), **sink)
    to.trigger(availableNow=True).start().awaitTermination()


def test_who_may_read_one_stream_and_append_to_another_does(
    spark: SparkSession, guarded: Guarded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = guarded.count("big-orders")
    source, sink = guarded.options("etl", stream="orders"), guarded.options("etl", stream="big-orders")
    assert reading(spark, source) == 100
    writing(spark, sink)
    streaming(spark, source, sink, tmp_path)
    assert guarded.count("big-orders") == before + 110
    spark.read.format("penstock").options(**source).load().explain("formatted")
    assert guarded.secret("etl") not in capsys.readouterr().out


def test_who_may_only_what_is_on_a_subject_reads_that(spark: SparkSession, guarded: Guarded) -> None:
    assert reading(spark, guarded.options("european", stream="orders", subject="orders.eu")) == 60


READS, WRITES = "user '{}' may not read on stream 'orders'", "user '{}' may not append on stream '{}'"


@pytest.mark.parametrize(
    ("run", "user", "says"),
    [
        (lambda go, _: reading(go.spark, go.options(stream="orders")), "stranger", READS),
        (lambda go, _: reading(go.spark, go.options(stream="big-orders")), "counting", "'{}' may not read on"),
        (lambda go, _: reading(go.spark, go.options(stream="orders")), "european", READS),
        (lambda go, _: reading(go.spark, go.options(stream="orders", subject="orders.us")), "european", READS),
        (lambda go, _: writing(go.spark, go.options(stream="big-orders")), "counting", WRITES),
        (lambda go, _: writing(go.spark, go.options(stream="orders")), "counting", WRITES),
        (lambda go, _: writing(go.spark, go.options(stream="orders")), "european", "no rule allows it; nearest: "),
    ],
)
def test_who_may_not_is_told_before_there_are_tasks_of_the_stream_and_the_right(
    spark: SparkSession, guarded: Guarded, tmp_path: Path, run: Callable[[Any, Path], Any], user: str, says: str
) -> None:
    go = _Go(spark, guarded, user)
    with pytest.raises(PySparkException) as caught:
        run(go, tmp_path)
    assert isinstance(caught.value, AnalysisException), "the driver says it, and no task"
    said = str(caught.value)
    assert says.format(user, "big-orders" if "'big-orders'" in said else "orders") in said
    assert "penstock acl add" in said
    assert guarded.secret(user) not in said


@dataclass(frozen=True)
class _Go:
    spark: SparkSession
    guarded: Guarded
    user: str

    def options(self, **more: Any) -> dict[str, Any]:
        return self.guarded.options(self.user, **more)


def test_a_query_that_may_not_ends_with_the_reason(spark: SparkSession, guarded: Guarded, tmp_path: Path) -> None:
    before = guarded.count("big-orders")
    may_read = guarded.options("counting", stream="orders")
    with pytest.raises(PySparkException, match="user 'stranger' may not read on stream 'orders'"):
        streaming(spark, guarded.options("stranger", stream="orders"), may_read, tmp_path / "reads")
    with pytest.raises(PySparkException, match="user 'counting' may not append on stream 'big-orders'"):
        streaming(spark, may_read, guarded.options("counting", stream="big-orders"), tmp_path / "writes")
    assert guarded.count("big-orders") == before


def test_rows_that_say_where_they_go_are_refused_with_the_reason(spark: SparkSession, guarded: Guarded) -> None:
    rows = spark.sql("select 'big-orders' as topic, 'x' as value")
    with pytest.raises(PySparkException, match="user 'counting' may not append on stream 'big-orders'"):
        rows.write.format("penstock").options(**guarded.options("counting")).mode("append").save()


def test_who_cannot_log_in_is_told_why(spark: SparkSession, guarded: Guarded, tmp_path: Path) -> None:
    secret = guarded.tokens["etl"].read_text().strip()
    (tmp_path / "wrong").write_text(f"{secret[:-3]}xyz\n")
    for more, says in (
        ({"penstock.credentials": str(tmp_path / "wrong")}, "the name or the secret is wrong"),
        ({"penstock.credentials": str(tmp_path / "none")}, "cannot read the credentials in .*/none"),
        ({"penstock.credentials": secret}, "looks like the secret itself"),
        ({"penstock.token": secret}, "penstock.token: there is no such option: Spark shows options; use a file with"),
        (
            {"penstock.tls.ca": str(Authority(tmp_path / "other", "other").ca)},
            "its certificate is of no authority that is",
        ),
    ):
        with pytest.raises(PySparkException, match=says) as caught:
            reading(spark, guarded.options("etl", stream="orders", **more))
        assert guarded.secret("etl") not in str(caught.value)


FUNCTION = 'def same(rows):\n    return rows.select("value")\n'


def test_a_pipeline_takes_the_options_of_every_command_and_says_in_a_line_what_it_may_not(
    guarded: Guarded, tmp_path: Path
) -> None:
    (tmp_path / "jobs.py").write_text(FUNCTION)
    environment = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parents[1])}

    def pipeline(user: str) -> subprocess.CompletedProcess[str]:
        files = ("--credentials", str(guarded.tokens[user]), "--tls-ca", str(guarded.ca))
        what = ("run", "jobs.py:same", "--from", "orders", "--to", "big-orders", "--once", "--checkpoint", user)
        command = (sys.executable, "-m", "penstock", "pipeline", *what, "--server", guarded.broker.client_address)
        return subprocess.run(
            (*command, *files, "--master", "local[1]"),
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S,
        )  # fmt: skip

    done = pipeline("etl")
    assert done.returncode == 0, done.stderr
    refused = pipeline("counting")
    assert refused.returncode == 1
    assert "user 'counting' may not append on stream 'big-orders'" in " ".join(refused.stderr.split()), refused.stderr
    assert "Traceback" not in refused.stderr
    assert guarded.secret("counting") not in refused.stderr + refused.stdout


# Executors that are processes of their own, with nothing of the driver's environment but what Spark hands over.
SCRIPT = """
import json, sys, urllib.request
from penstock.spark import register, session

token, ca, servers = sys.argv[1], sys.argv[2], sys.argv[3]
config = {
    "spark.executorEnv.PENSTOCK_TOKEN": open(token).read().strip(),
    "spark.ui.enabled": "true", "spark.ui.port": "0", "spark.log.level": "INFO",
}
spark = session("local-cluster[1,1,1024]", name="tests", config=config)
register(spark)
options = {"servers": servers, "penstock.tls.ca": ca}
rows = spark.read.format("penstock").options(stream="orders", **options).load()
count = rows.count()
rows.explain(True)
rows.selectExpr("value").write.format("penstock").options(stream="big-orders", **options).mode("append").save()
base = spark.sparkContext.uiWebUrl
api = f"{base}/api/v1/applications/{spark.sparkContext.applicationId}"
pages = [f"{base}/environment/", f"{base}/SQL/", f"{base}/SQL/execution/?id=0", f"{api}/environment", f"{api}/sql"]
shown = "".join(urllib.request.urlopen(one).read().decode() for one in pages)
print(json.dumps({"count": count, "shown": shown}))
spark.stop()
"""


def test_executors_log_in_with_their_own_environment_and_nothing_shows_the_secret(
    guarded: Guarded, tmp_path: Path
) -> None:
    before = guarded.count("big-orders")
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(penstock.__file__).parents[1]),
        "PENSTOCK_TOKEN": guarded.tokens["etl"].read_text().strip(),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": str(java.choose().home),
    }
    arguments = (str(guarded.tokens["etl"]), str(guarded.ca), guarded.broker.client_address)
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout.splitlines()[-1])
    assert told["count"] == 100
    assert guarded.count("big-orders") == before + 100
    assert "spark.executorEnv.PENSTOCK_TOKEN" in told["shown"]
    assert guarded.secret("etl") not in told["shown"]
    assert guarded.secret("etl") not in answer.stdout + answer.stderr
    logs = [file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file()]
    assert not any(guarded.secret("etl") in one for one in logs)
