// Opens a segment file with arrow-js and prints, as JSON, what it saw.
// Usage: node read_segment.mjs FOLDER_WITH_NODE_MODULES SEGMENT_FILE
//
// The digest covers every cell, row by row, as the test computes it: offset and timestamp (microseconds) as 8 bytes,
// little-endian; then each text or binary cell as 4 bytes of length and its bytes, or 4 bytes of 0xff for null.

import { createHash } from "node:crypto";
import { createReadStream, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";

const [folder, file] = process.argv.slice(2).map((path) => resolve(path));
const { RecordBatchReader, tableFromIPC } = createRequire(join(folder, "/"))("apache-arrow");

const NULL_CELL = Buffer.from("ffffffff", "hex");

function int64(value) {
  const out = Buffer.alloc(8);
  out.writeBigInt64LE(value);
  return out;
}

function cell(value) {
  if (value === null) return NULL_CELL;
  const bytes = typeof value === "string" ? Buffer.from(value, "utf8") : Buffer.from(value);
  const length = Buffer.alloc(4);
  length.writeInt32LE(bytes.length);
  return Buffer.concat([length, bytes]);
}

function shown(batch, row) {
  const text = (name) => {
    const value = batch.getChild(name).get(row);
    return value === null ? null : Buffer.from(value).toString("base64");
  };
  return {
    offset: String(batch.getChild("offset").get(row)),
    timestamp_us: String(batch.getChild("timestamp").data[0].values[row]),
    subject: batch.getChild("subject").get(row),
    key: text("key"),
    value: text("value"),
    headers: text("headers"),
  };
}

const digest = createHash("sha256");
const batches = [];
let schema = null;
let first = null;
let last = null;
let streamed = 0;

// Read as a stream, as a program that follows a file would.
const reader = await RecordBatchReader.from(createReadStream(file));
for await (const batch of reader) {
  schema ??= batch.schema;
  const columns = ["subject", "key", "value", "headers"].map((name) => batch.getChild(name));
  const timestamps = batch.getChild("timestamp").data[0].values;
  const offsets = batch.getChild("offset");
  for (let row = 0; row < batch.numRows; row++) {
    digest.update(int64(offsets.get(row)));
    digest.update(int64(timestamps[row]));
    for (const column of columns) digest.update(cell(column.get(row)));
  }
  first ??= shown(batch, 0);
  last = shown(batch, batch.numRows - 1);
  streamed += batch.numRows;
  batches.push({ rows: batch.numRows, metadata: Object.fromEntries(batch.metadata ?? []) });
}

// And whole, from memory.
const table = tableFromIPC(readFileSync(file));

console.log(
  JSON.stringify({
    rows: streamed,
    table_rows: table.numRows,
    fields: schema.fields.map((field) => [field.name, String(field.type), field.nullable]),
    schema_metadata: Object.fromEntries(schema.metadata),
    batches,
    first,
    last,
    digest: digest.digest("hex"),
  }),
);
