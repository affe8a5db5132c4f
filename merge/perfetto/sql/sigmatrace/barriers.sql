-- Barriers between GPUs: in which order they arrived, and how far the first was ahead of the last.

INCLUDE PERFETTO MODULE sigmatrace.doorbells;

-- Arrivals. A GPU arrives at a barrier when it rings for the first of the control elements that it sends for it: so many of them, in order of time, are a barrier, and
-- the n-th of one process and GPU is the n-th of each other. That holds for barriers that all of them take part in, in traces in which nothing was left out.
CREATE PERFETTO FUNCTION sigmatrace_barriers(
  -- How many control elements a GPU sends for one barrier: 1 to a counter in one place, N - 1 to all others, the logarithm of N where it goes by steps.
  elements LONG,
  -- Only control elements from here on; NULL: from the first.
  begin_ts LONG,
  -- And before this; NULL: to the last.
  end_ts LONG
)
RETURNS TABLE(
  -- From 0.
  barrier LONG,
  -- 1 for the GPU that came first.
  place LONG,
  gpu STRING,
  process STRING,
  ts LONG,
  -- How long after the first.
  behind_ns LONG,
  -- Control elements that were seen of it: less than asked for in the last barrier of a GPU that did not send all.
  seen LONG
) AS
WITH
  numbered AS (
    SELECT gpu, process, upid, ts, (row_number() OVER (PARTITION BY upid, gpu ORDER BY ts, id) - 1) / $elements AS barrier
    FROM sigmatrace_elements
    WHERE control AND operation != 'control' AND ts >= coalesce($begin_ts, ts) AND ts < coalesce($end_ts, ts + 1)
  ),
  arrived AS (
    SELECT barrier, gpu, process, upid, min(ts) AS ts, count() AS seen
    FROM numbered
    GROUP BY barrier, gpu, process, upid
  )
SELECT
  barrier,
  row_number() OVER (PARTITION BY barrier ORDER BY ts, upid) AS place,
  gpu,
  process,
  ts,
  ts - min(ts) OVER (PARTITION BY barrier) AS behind_ns,
  seen
FROM arrived
ORDER BY barrier, place;

-- Barriers, with the time from the first arrival to the last; arguments as for sigmatrace_barriers.
CREATE PERFETTO FUNCTION sigmatrace_barrier_spread(elements LONG, begin_ts LONG, end_ts LONG)
RETURNS TABLE(
  barrier LONG,
  ts LONG,
  -- How many GPUs arrived.
  gpus LONG,
  first_gpu STRING,
  last_gpu STRING,
  spread_ns LONG,
  -- GPUs in the order of their arrival.
  arrivals STRING
) AS
SELECT
  barrier,
  min(ts) AS ts,
  count() AS gpus,
  max(CASE WHEN place = 1 THEN gpu END) AS first_gpu,
  max(CASE WHEN place = of THEN gpu END) AS last_gpu,
  max(behind_ns) AS spread_ns,
  group_concat(gpu, ', ') AS arrivals
FROM (SELECT *, count() OVER (PARTITION BY barrier) AS of FROM sigmatrace_barriers($elements, $begin_ts, $end_ts) ORDER BY barrier, place)
GROUP BY barrier
ORDER BY barrier;
