// The functions of Deno's `@std/assert` and `@std/bytes` that nats.js's tests call: on Node, by Node's own.
import nodeAssert from "node:assert/strict";
import { isDeepStrictEqual } from "node:util";

// Node's sockets yield a Buffer where Deno's yield a Uint8Array, whose subclass it is: equal bytes are equal.
function plain(value) {
  if (Buffer.isBuffer(value)) {
    return new Uint8Array(value);
  }
  return Array.isArray(value) ? value.map(plain) : value;
}

export const assert = (value, message) => nodeAssert.ok(value, message);
export const assertFalse = (value, message) => nodeAssert.ok(!value, message);
export const assertEquals = (found, expected, message) => nodeAssert.deepEqual(plain(found), plain(expected), message);
export const assertExists = (value, message) => nodeAssert.ok(value !== undefined && value !== null, message);
export const equal = (one, other) => isDeepStrictEqual(plain(one), plain(other));
export const equals = (one, other) => Buffer.compare(one, other) === 0;

export function assertArrayIncludes(found, expected, message) {
  for (const one of expected) {
    nodeAssert.ok(found.some((other) => isDeepStrictEqual(one, other)), message ?? `${one} is not in ${found}`);
  }
}

export function assertIsError(error, type = Error, words = "", message) {
  nodeAssert.ok(error instanceof type, message ?? `${error} is no ${type.name}`);
  nodeAssert.ok(error.message.includes(words), message ?? `"${error.message}" does not include "${words}"`);
}

// Both take (function, message) and (function, type, words, message).
function check(error, type, words, message) {
  if (typeof type === "function") {
    assertIsError(error, type, words ?? "", message);
  }
  return error;
}

export function assertThrows(call, type, words, message) {
  let error;
  try {
    call();
  } catch (thrown) {
    error = thrown;
  }
  nodeAssert.ok(error !== undefined, message ?? "nothing was thrown");
  return check(error, type, words, message);
}

export async function assertRejects(call, type, words, message) {
  let error;
  try {
    await call();
  } catch (thrown) {
    error = thrown;
  }
  nodeAssert.ok(error !== undefined, message ?? "nothing was thrown");
  return check(error, type, words, message);
}
