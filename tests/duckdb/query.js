// Runs one SQL statement with DuckDB and prints its rows as CSV, NULL as [NULL]: DUCKDB=FOLDER node query.js 'SQL'
const fs = require('fs')
const os = require('os')
const path = require('path')
const duckdb = require(path.join(process.env.DUCKDB, 'duckdb.node'))

async function main() {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'duckdb-'))
  try {
    const out = path.join(folder, 'rows.csv')
    const connection = await duckdb.connect(await duckdb.open(':memory:'))
    const sql = process.argv[2].trim().replace(/;$/, '')
    await duckdb.query(connection, `COPY (${sql}) TO '${out}' (FORMAT csv, HEADER false, NULLSTR '[NULL]')`)
    process.stdout.write(fs.readFileSync(out))
  } finally {
    fs.rmSync(folder, { recursive: true })
  }
}

main().catch(e => {
  console.error(e.message)
  process.exit(1)
})
