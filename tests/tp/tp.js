'use strict';
// tp.js: query and check a trace with Perfetto's own trace_processor.
//
//   node tp.js [--sql-package DIR[@NAME]] TRACE SQL...   one JSON array of strings (or null) a row
//   node tp.js --check TRACE                             what the importer complains about; exit status 3 if anything
//
// Exit status 1: the trace is refused, or SQL is wrong. The folder that fetch.sh fills is found in TP_ASSETS.
const fs = require('fs');
const path = require('path');
const { TraceProcessor } = require('./engine.js');

// Importers count many losses at severity 'info' only, where the usual query for errors does not see them.
const PROBLEMS = `
  SELECT name, idx, severity, source, value FROM stats
  WHERE value > 0 AND (severity IN ('error', 'data_loss') OR severity = 'info' AND (
    name GLOB '*error*' OR name GLOB '*skipped*' OR name GLOB '*missing*' OR name GLOB '*invalid*' OR
    name GLOB '*failure*' OR name GLOB '*dropped*'))
  ORDER BY severity, name, idx`;
// No statistic tells of a slice that never ended, as in a trace whose tail was cut.
const UNFINISHED = 'SELECT count(*) FROM slice WHERE dur = -1';

function cellText(v) {
  if (v === null) return null;
  return Buffer.isBuffer(v) ? 'x' + v.toString('hex') : String(v);
}

// DIR[@NAME]: a/b.sql in DIR becomes the module NAME.a.b.
function sqlPackage(spec) {
  const [dir, name = path.basename(path.resolve(dir))] = spec.split('@');
  const modules = [];
  const walk = (folder, names) => {
    for (const e of fs.readdirSync(folder, { withFileTypes: true })) {
      const at = path.join(folder, e.name);
      if (e.isDirectory()) walk(at, [...names, e.name]);
      else if (e.name.endsWith('.sql')) {
        modules.push({ name: [name, ...names, e.name.slice(0, -4)].join('.'), sql: fs.readFileSync(at, 'utf8') });
      }
    }
  };
  walk(dir, []);
  return [name, modules];
}

function check(tp) {
  const problems = tp.query(PROBLEMS).rows.map(r => r.map(cellText).join(' '));
  const unfinished = tp.query(UNFINISHED).rows[0][0];
  if (unfinished) problems.push(`${unfinished} slices without an end`);
  for (const p of problems) console.log(p);
  return problems.length ? 3 : 0;
}

async function main(args) {
  const packages = [], rest = [];
  let checking = false;
  while (args.length) {
    const a = args.shift();
    if (a === '--check') checking = true;
    else if (a === '--sql-package') packages.push(sqlPackage(args.shift()));
    else rest.push(a);
  }
  const [trace, ...queries] = rest;
  if (!trace || !process.env.TP_ASSETS || checking === queries.length > 0) {
    console.error('usage: TP_ASSETS=DIR node tp.js [--sql-package DIR[@NAME]] TRACE SQL... | --check TRACE');
    return 2;
  }
  const tp = await TraceProcessor.create(process.env.TP_ASSETS);
  tp.load(trace);
  for (const [name, modules] of packages) tp.registerPackage(name, modules);
  if (checking) return check(tp);
  for (const sql of queries) {
    const out = tp.query(sql).rows.map(row => JSON.stringify(row.map(cellText)) + '\n');
    fs.writeSync(1, out.join(''));
  }
  return 0;
}

main(process.argv.slice(2)).then(rc => { process.exitCode = rc; }, e => {
  console.error(String(e.message || e));
  process.exitCode = 1;
});
