-- What GPUs ring for: doorbells, the elements that they cover, GPUs and their bandwidth, as sigmatrace's traces show them.

-- Doorbells. Of one that covers elements of both kinds there is a row of each.
CREATE PERFETTO VIEW sigmatrace_doorbells(
  -- Id of the slice.
  id LONG,
  -- When the doorbell was seen, and passed on to the device.
  ts TIMESTAMP,
  -- 1: the elements only synchronize, such as those of barriers. 0: they move data.
  control LONG,
  -- How many elements it covers.
  elements LONG,
  -- Their payload.
  bytes LONG,
  -- Operation of the first.
  first STRING,
  -- Queue pair, with its peer.
  queue STRING,
  -- GPU that the queue pair belongs to; NULL where it is not known.
  gpu STRING,
  -- Process that the GPU rang for.
  process STRING,
  upid LONG
) AS
SELECT
  s.id,
  s.ts,
  s.name = 'control doorbell' AS control,
  extract_arg(s.arg_set_id, 'debug.elements') AS elements,
  extract_arg(s.arg_set_id, 'debug.bytes') AS bytes,
  extract_arg(s.arg_set_id, 'debug.first') AS first,
  substr(t.name, 1, length(t.name) - CASE WHEN s.name = 'control doorbell' THEN length(': control doorbells') ELSE length(': doorbells') END) AS queue,
  extract_arg(s.arg_set_id, 'debug.gpu') AS gpu,
  p.name AS process,
  p.upid
FROM slice AS s
JOIN process_track AS t ON t.id = s.track_id
JOIN process AS p USING (upid)
WHERE s.name IN ('doorbell', 'control doorbell') AND s.category GLOB 'doorbell*';

-- Elements of queues that GPUs ring: work requests that no call of the host shows. None in traces of mode simple.
CREATE PERFETTO VIEW sigmatrace_elements(
  -- Id of the slice, which has no length: when the element completed is not seen.
  id LONG,
  -- When its doorbell was seen.
  ts TIMESTAMP,
  -- What it does: write, write_imm, read, send, atomic, control.
  operation STRING,
  -- 1: it only synchronizes.
  control LONG,
  bytes LONG,
  -- Index of its first block in the ring, counted on.
  block LONG,
  -- Number of the element on its queue pair.
  ordinal LONG,
  queue STRING,
  gpu STRING,
  -- GPU that it goes to; NULL where that is not known.
  peer_gpu STRING,
  -- Process and queue pair at the other side.
  peer STRING,
  process STRING,
  upid LONG
) AS
SELECT
  s.id,
  s.ts,
  s.name AS operation,
  s.category GLOB '*control*' AS control,
  extract_arg(s.arg_set_id, 'debug.bytes') AS bytes,
  coalesce(extract_arg(s.arg_set_id, 'debug.index'), 0) AS block,
  extract_arg(s.arg_set_id, 'debug.ordinal') AS ordinal,
  t.name AS queue,
  extract_arg(s.arg_set_id, 'debug.gpu') AS gpu,
  extract_arg(s.arg_set_id, 'debug.peer_gpu') AS peer_gpu,
  extract_arg(s.arg_set_id, 'debug.peer') AS peer,
  p.name AS process,
  p.upid
FROM slice AS s
JOIN process_track AS t ON t.id = s.track_id
JOIN process AS p USING (upid)
WHERE s.category GLOB 'doorbell*' AND s.name NOT IN ('doorbell', 'control doorbell');

-- What one GPU rang for on its way to another.
CREATE PERFETTO VIEW sigmatrace_gpu_traffic(
  gpu STRING,
  peer_gpu STRING,
  operation STRING,
  control LONG,
  count LONG,
  bytes LONG
) AS
SELECT gpu, peer_gpu, operation, control, count() AS count, sum(bytes) AS bytes
FROM sigmatrace_elements
GROUP BY gpu, peer_gpu, operation, control;

-- Data that was rung for, without what only synchronizes: of every queue pair and every GPU, by interval.
CREATE PERFETTO VIEW sigmatrace_bandwidth(
  ts TIMESTAMP,
  -- From here to the next value; NULL for the last.
  dur LONG,
  bytes_per_second DOUBLE,
  -- The queue pair; NULL for all of a GPU.
  queue STRING,
  -- The GPU; NULL for a queue pair.
  gpu STRING
) AS
SELECT
  c.ts,
  lead(c.ts) OVER (PARTITION BY c.track_id ORDER BY c.ts) - c.ts AS dur,
  c.value AS bytes_per_second,
  CASE WHEN t.name GLOB '*: initiated*' THEN substr(t.name, 1, length(t.name) - length(': initiated bytes per second')) END AS queue,
  CASE WHEN t.name NOT GLOB '*: initiated*' THEN g.name END AS gpu
FROM counter AS c
JOIN track AS t ON t.id = c.track_id
LEFT JOIN track AS g ON g.id = t.parent_id
WHERE t.name GLOB '*initiated bytes per second';
