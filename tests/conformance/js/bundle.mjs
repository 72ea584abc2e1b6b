// Bundles nats.js's tests of key-value and objects, unmodified, into one program for Node.
//     node bundle.mjs MODULES CHECKOUT PROGRAM        MODULES: the folder where npm installed package.json
//     node PROGRAM list                               prints the names, one a line, as JSON
//     node PROGRAM run NAME                           exit code 0: it passed
// The tests are written for Deno: `Deno.test` collects them, `@std/assert` is assert.mjs, and Node's transport connects.
import { createRequire } from "node:module";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const [modules, checkout, program] = process.argv.slice(2);
const here = dirname(fileURLToPath(import.meta.url));
const require = createRequire(join(modules, "package.json"));
const { build } = require("esbuild");
const files = ["kv/tests/kv_test.ts", "obj/tests/objectstore_test.ts"];
const ours = { "@std/assert": "assert.mjs", "@std/bytes": "assert.mjs" };

const aliases = {
  name: "aliases",
  setup(made) {
    made.onResolve({ filter: /^(@std\/|@nats-io\/|js-sha256$|nst$)/ }, ({ path, importer }) => {
      if (ours[path]) {
        return { path: join(here, ours[path]) };
      }
      if (path === "nst") {
        return { path: join(checkout, importer.includes("/kv/") ? "kv" : "obj", "tests", "nst.ts") };
      }
      return { path: require.resolve(path.replace("transport-deno", "transport-node")) };
    });
  },
};

const head = `
const tests = new Map();
let file = "";
globalThis.Deno = {
  test(first, ...others) {
    const named = typeof first === "object" ? first : { name: typeof first === "string" ? first : first.name };
    const call = [first.fn, first, ...others].find((one) => typeof one === "function");
    const options = [named, ...others].find((one) => one?.ignore !== undefined) ?? {};
    const name = file + ": " + named.name;
    if (tests.has(name)) throw new Error("twice: " + name);
    tests.set(name, { call, ignore: options.ignore === true });
  },
};
const context = { step: async (name, call) => { await call(context); return true; } };
`;
const tail = `
if (process.argv[2] === "list") {
  for (const name of tests.keys()) console.log(JSON.stringify(name));
  process.exit(0);
}
const test = tests.get(process.argv[3]);
if (test === undefined) throw new Error("no such test");
if (test.ignore) process.exit(3);
try {
  await test.call(context);
} catch (error) {
  console.error("FAILED: " + String(error.message ?? error).split("\\n").join(" "));
  console.error(error.stack);
  process.exit(1);
}
process.exit(0);
`;
const parts = files.map((path) => `file = ${JSON.stringify(path.split("/")[0])}; await import(${JSON.stringify(join(checkout, path))});`);

await build({
  stdin: { contents: head + parts.join("\n") + tail, resolveDir: modules, loader: "js" },
  bundle: true,
  platform: "node",
  format: "esm",
  outfile: program,
  plugins: [aliases],
  banner: { js: 'import { createRequire as _require } from "node:module"; const require = _require(import.meta.url);' },
  logLevel: "warning",
});
