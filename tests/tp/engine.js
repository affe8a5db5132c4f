'use strict';
// Perfetto's trace_processor as a library: loads the wasm module that fetch.sh brought and speaks its RPC, a stream of
// protobuf messages (perfetto/trace_processor/trace_processor.proto; the field numbers below are from there).
const fs = require('fs');
const path = require('path');

const CHUNK = 32 * 1024 * 1024; // size of the module's request buffer

// The loader is an Emscripten script bundled for a web worker: cut off the part that starts the worker's engine, and
// hand it just enough of a worker's globals.
function loadFactory(assets) {
  const file = path.join(assets, 'engine_bundle.node.js');
  let src = fs.readFileSync(file, 'utf8');
  const cut = src.indexOf('var engineExports = requireEngine();');
  if (cut < 0) throw new Error(`${file}: unexpected layout`);
  src = src.slice(0, cut) + '\nreturn requireTrace_processor();\n})();\nreturn engine;';
  const self = { location: { href: 'file:///tp/' } };
  const names = ['self', 'WorkerGlobalScope', 'window', 'document', 'require', 'module', 'process'];
  return new Function(...names, src)(self, function () {});
}

// ---- protobuf ----

function varint(n) {
  const out = [];
  for (n = BigInt(n); n > 127n; n >>= 7n) out.push(Number(n & 127n) | 128);
  out.push(Number(n));
  return Buffer.from(out);
}
const tag = (field, wire) => varint(field * 8 + wire);
const intField = (field, n) => Buffer.concat([tag(field, 0), varint(n)]);
const bytesField = (field, b) => Buffer.concat([tag(field, 2), varint(Buffer.byteLength(b)), Buffer.from(b)]);

class Reader {
  constructor(buf, pos = 0, end = buf.length) {
    Object.assign(this, { buf, pos, end });
  }
  number() { // below 2^53
    let value = 0, scale = 1, byte;
    do {
      if (this.pos >= this.end) throw new RangeError('truncated');
      byte = this.buf[this.pos++];
      value += (byte & 127) * scale;
      scale *= 128;
    } while (byte & 128);
    return value;
  }
  signed() { // a number where it is exact, else a BigInt
    let value = 0n, shift = 0n, byte;
    do {
      byte = this.buf[this.pos++];
      value |= BigInt(byte & 127) << shift;
      shift += 7n;
    } while (byte & 128);
    value = BigInt.asIntN(64, value);
    return Number.isSafeInteger(Number(value)) ? Number(value) : value;
  }
  double() {
    this.pos += 8;
    return this.buf.readDoubleLE(this.pos - 8);
  }
  bytes() {
    const n = this.number();
    this.pos += n;
    return this.buf.subarray(this.pos - n, this.pos);
  }
  string() { return this.bytes().toString('utf8'); }
  message() { return new Reader(this.bytes()); }
  skip(wire) {
    if (wire === 0) this.signed();
    else if (wire === 1) this.pos += 8;
    else if (wire === 2) this.bytes();
    else if (wire === 5) this.pos += 4;
    else throw new Error(`wire type ${wire}`);
  }
  // The caller of next() consumes the field, by one of the methods above.
  *fields() {
    while (this.pos < this.end) {
      const t = this.number();
      yield [Math.floor(t / 8), t & 7];
    }
  }
}

// The string in a field of a message, '' where there is none.
function stringField(bytes, field) {
  let found = '';
  const r = new Reader(bytes);
  for (const [f, wire] of r.fields()) {
    if (f === field && wire === 2) found = r.string();
    else r.skip(wire);
  }
  return found;
}

// ---- the module ----

const METHOD = { append: 1, finalize: 2, query: 3, status: 10, registerSqlPackage: 13 };
const RESULT = { append: 201, query: 203, status: 210, register: 211, finalize: 212 };

class TraceProcessor {
  static async create(assets) {
    const tp = new TraceProcessor();
    tp.log = [];
    tp.sequence = 0;
    tp.received = [];
    tp.partial = Buffer.alloc(0);
    const factory = loadFactory(assets);
    await new Promise(ready => {
      tp.module = factory({
        locateFile: s => s,
        print: l => tp.log.push(l),
        printErr: l => tp.log.push(l),
        wasmBinary: fs.readFileSync(path.join(assets, 'trace_processor.wasm')),
        onRuntimeInitialized: ready,
      });
    });
    const reply = tp.module.addFunction((ptr, size) => {
      ptr >>>= 0;
      tp.onReply(Buffer.from(tp.module.HEAPU8.slice(ptr, ptr + size)));
    }, 'vpi');
    tp.request = tp.module.ccall('trace_processor_rpc_init', 'pointer', ['pointer', 'number'], [reply, CHUNK]) >>> 0;
    return tp;
  }

  // Replies come as a stream of length-delimited messages, cut anywhere.
  onReply(data) {
    this.partial = Buffer.concat([this.partial, data]);
    for (;;) {
      const r = new Reader(this.partial);
      let message;
      try {
        r.number();
        message = r.bytes();
      } catch {
        return; // the length is not whole yet
      }
      if (r.pos > this.partial.length) return;
      this.received.push(message);
      this.partial = this.partial.subarray(r.pos);
    }
  }

  // Sends one request and returns the replies as maps from result field to bytes.
  call(method, argField, arg) {
    const head = Buffer.concat([intField(1, this.sequence++), intField(2, method)]);
    const argHead = argField ? Buffer.concat([tag(argField, 2), varint(arg.length)]) : Buffer.alloc(0);
    const length = head.length + argHead.length + (arg ? arg.length : 0);
    const parts = [Buffer.concat([tag(1, 2), varint(length), head, argHead])];
    if (arg) parts.push(arg);
    for (const part of parts) {
      for (let at = 0; at < part.length; at += CHUNK) {
        const piece = part.subarray(at, at + CHUNK);
        this.module.HEAPU8.set(piece, this.request);
        this.module.ccall('trace_processor_on_rpc_request', 'void', ['number'], [piece.length]);
      }
    }
    const replies = this.received;
    this.received = [];
    return replies.map(bytes => {
      const out = {};
      const r = new Reader(bytes);
      for (const [f, wire] of r.fields()) {
        if (f === 5) throw new Error(`trace_processor: ${r.string()}`);
        else if (f === 4) throw new Error(`trace_processor: invalid request ${r.number()}`);
        else if (wire === 2) out[f] = r.bytes();
        else r.skip(wire);
      }
      return out;
    });
  }

  // Reads a whole trace; throws what the importer says when it refuses the file.
  load(file) {
    const fd = fs.openSync(file, 'r');
    const chunk = Buffer.alloc(CHUNK - 4096);
    let n;
    while ((n = fs.readSync(fd, chunk, 0, chunk.length, null)) > 0) {
      for (const m of this.call(METHOD.append, 101, chunk.subarray(0, n))) {
        const e = m[RESULT.append] && stringField(m[RESULT.append], 2);
        if (e) throw new Error(`import: ${e}`);
      }
    }
    fs.closeSync(fd);
    for (const m of this.call(METHOD.finalize)) {
      const e = m[RESULT.finalize] && stringField(m[RESULT.finalize], 1);
      if (e) throw new Error(`import: ${e}`);
    }
  }

  version() {
    return this.call(METHOD.status).map(m => m[RESULT.status] ? stringField(m[RESULT.status], 2) : '').join('');
  }

  // Makes modules, {name, sql} each, known under a package's name for INCLUDE PERFETTO MODULE.
  registerPackage(name, modules) {
    const parts = [bytesField(1, name)];
    for (const m of modules) parts.push(bytesField(2, Buffer.concat([bytesField(1, m.name), bytesField(2, m.sql)])));
    for (const m of this.call(METHOD.registerSqlPackage, 108, Buffer.concat(parts))) {
      const e = m[RESULT.register] && stringField(m[RESULT.register], 1);
      if (e) throw new Error(`SQL package ${name}: ${e}`);
    }
  }

  // Runs SQL and returns {columns, rows} of its last statement; a cell is null, a number, BigInt, string or Buffer.
  query(sql) {
    const columns = [], rows = [];
    let row = [];
    for (const m of this.call(METHOD.query, 103, bytesField(1, sql))) {
      if (!m[RESULT.query]) continue;
      const r = new Reader(m[RESULT.query]);
      for (const [f, wire] of r.fields()) {
        if (f === 1) columns.push(r.string());
        else if (f === 2) throw new Error(`SQL: ${r.string()}`);
        else if (f !== 3) r.skip(wire);
        else for (const cell of batchCells(r.message())) {
          row.push(cell);
          if (row.length === columns.length) {
            rows.push(row);
            row = [];
          }
        }
      }
    }
    return { columns, rows };
  }
}

// The cells of a QueryResult.CellsBatch: one type byte each, the values in a list per type.
function* batchCells(r) {
  let types = Buffer.alloc(0), ints, doubles, strings = [];
  const blobs = [];
  for (const [f, wire] of r.fields()) {
    if (f === 1) types = r.bytes();
    else if (f === 2) ints = r.message();
    else if (f === 3) doubles = r.message();
    else if (f === 4) blobs.push(r.bytes());
    else if (f === 5) strings = r.string().split('\0');
    else r.skip(wire);
  }
  let s = 0, b = 0;
  for (const type of types) {
    if (type === 2) yield ints.signed();
    else if (type === 3) yield doubles.double();
    else if (type === 4) yield strings[s++];
    else if (type === 5) yield blobs[b++];
    else yield null;
  }
}

module.exports = { TraceProcessor };
