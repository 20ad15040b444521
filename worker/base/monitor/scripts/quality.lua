-- @include guard streams
-- Sums of the monitor: which verdicts came in which bucket of time, by series and class of sampling probability.
--
-- quality:<series>:<day>           hash, buckets of an hour, 00 to 23; TTL of 90 days after the day
-- quality:<series>:<day>:<hour>    hash, buckets of five minutes, 00 to 11; TTL of 3 days after the hour
-- quality:<series>:<day>:<hour>:<n> hash, buckets of ten seconds of the n-th ten minutes, 00 to 59; TTL of 70 minutes.
--                                  Only of whole series, and of verdicts of the last hour
--   <bucket><letter>   judgements that pass or fail, by class of their weights; A: from 1, B: from 2, C: from 4, ...
--                      n, Σw, Σw·y, Σw², Σw²·y; y is 1 for a pass. While all weights are the same, only n, Σy, w
--   <bucket>s          judgements that came to a session with earlier ones, and what sums over sessions have beyond
--                      those over single judgements; W = Σw and K = Σw·y of a session: ΣW² - Σw², ΣWK - Σw²·y, ΣK² - Σw²·y,
--                      ΣW³ - Σw³, ΣW⁴ - Σw⁴
--   <bucket>a, u, x    abstained; unscored since the judge does not apply; asked for and not given: n, Σw, Σw²
-- quality:<series>:<period>:<part> hash, cluster -> W, K of its judgements so far; TTL of two periods. A cluster is a
--                                  session, or a trace without one
-- quality:<kind>:<day>             hash, labels as JSON -> count, such as those of repeated judgings; TTL of 90 days
-- quality:<kind>:once:<period>     hash of what counts once in six hours, as failures of a session; TTL of two periods
-- The TTL of sums and clusters is set with the first field of a key.
--
-- Values of sums are msgpack: a whole number takes 1 to 5 bytes, so that a hash of a day stays in Redis' compact encoding.

-- @script add_quality
-- Acknowledges outbox entries for the monitor and adds their judgements to the sums, in one step. Entries of another
-- partition's outbox cannot be acknowledged here: they are added once because the position in that outbox moves with them.
--
-- KEYS[1] verdicts, stream · KEYS[2] account:all · KEYS[3] groups, see streams.lua; with plan.partition:
-- KEYS[1] quality:positions   hash, partition -> the last entry of its outbox that is in the sums; no TTL
-- KEYS[4..] hashes of sums, clusters and counts, named by their index in the plan
-- ARGV[1] the plan, as msgpack, see worker/base/monitor/sums.py: group, last (of the entries), max_clusters, ttls {key, s},
--         partition and after, the position that the entries follow, both '' for entries of this Redis,
--         places {hour's key, its field, five minutes' key, its field, perhaps ten seconds' key, its field},
--         entries {id, {{place, w, y or -1 without a pass or fail}, ...}, {{key, field, amount}, ...}}; a judgement of a
--         session has also the place of its sums over sessions, the cluster's key, the cluster; an amount that counts
--         once has also the key of that hash and the field
-- Returns how many entries were added now for the first time, at least 1 where the position moved, and how many of their judgements came without their
-- cluster because its hash is full. 0 entries with plan.partition: the position is another one.
local plan = cmsgpack.unpack(ARGV[1])
local writes = {}
-- Rights are checked on one hash for all, because they are given by the prefix.
if KEYS[4] then writes[1] = {KEYS[4], false, 'HSET', 'HMGET', 'HLEN', 'EXPIRE', 'HINCRBY'} end
local is_here = plan.partition == ''
if is_here then
  writes[#writes + 1] = {KEYS[1], 'stream', unpack(OF_STREAM)}
  writes[#writes + 1] = {KEYS[2], 'hash', 'HINCRBY'}
  writes[#writes + 1] = {KEYS[3], 'hash', 'HMGET', 'HSET'}
else
  writes[#writes + 1] = {KEYS[1], 'hash', 'HSET', 'HGET'}
end
local exported = 'exported:' .. plan.group
local refused = guard(writes) or (is_here and guard_counters(KEYS[2], {exported}) or nil)
if refused then return refused end
if not is_here and (redis.call('HGET', KEYS[1], plan.partition) or '') ~= plan.after then return {0, 0} end

local function is_of_class(field) return #field == 3 and field:byte(3) <= 90 end

-- The five sums of a class from their short form, and the short form from them where it says as much.
local function lengthen(field, held)
  if #held ~= 3 or not is_of_class(field) then return held end
  local n, passes, w = unpack(held)
  return {n, n * w, passes * w, n * w * w, passes * w * w}
end

local function is_near(left, right) return math.abs(left - right) <= 1e-12 * right end

local function shorten(field, held)
  if #held ~= 5 or not is_of_class(field) then return held end
  local n, weights, passed, squares, passed_squares = unpack(held)
  local w = weights / n
  local passes = math.floor(passed / w + 0.5)
  local is_same = is_near(passed, passes * w) and is_near(squares, n * w * w) and is_near(passed_squares, passes * w * w)
  return is_same and {n, passes, w} or held
end

-- By key of counts: its fields, and by field how much it grows. By key of what counts once: true.
local counted, once = {}, {}
for _, entry in ipairs(plan.entries) do
  for _, increment in ipairs(entry[3]) do
    local key, field = increment[1], increment[2]
    counted[key] = counted[key] or {fields = {}, amounts = {}}
    if not counted[key].amounts[field] then table.insert(counted[key].fields, field) end
    counted[key].amounts[field] = 0
    if increment[4] then once[increment[4]] = true end
  end
end
for key in pairs(once) do
  refused = guard({{KEYS[key], 'hash'}})
  if refused then return refused end
end
for key, of_key in pairs(counted) do
  refused = guard({{KEYS[key], 'hash'}}) or guard_counters(KEYS[key], of_key.fields)
  if refused then return refused end
end

-- By key: its fields that the plan names, each once, and the numbers of each.
local names, numbers = {}, {}

local function request_field(key, field)
  local of_key = numbers[key]
  if not of_key then
    of_key = {}
    numbers[key], names[key] = of_key, {}
  end
  if not of_key[field] then
    of_key[field] = {}
    table.insert(names[key], field)
  end
end

for _, place in ipairs(plan.places) do
  for bucket = 1, #place, 2 do request_field(place[bucket], place[bucket + 1]) end
end
for _, entry in ipairs(plan.entries) do
  for _, part in ipairs(entry[2]) do
    if part[5] then request_field(part[5], part[6]) end
  end
end

-- Everything is read, and found to be sums, before the first write.
local lengths = {}
for key, fields in pairs(names) do
  lengths[key] = redis.pcall('HLEN', KEYS[key])
  if type(lengths[key]) == 'table' then return guard({{KEYS[key], 'hash'}}) end
  for first = 1, lengths[key] > 0 and #fields or 0, 1000 do
    local last = math.min(first + 999, #fields)
    for index, value in ipairs(redis.call('HMGET', KEYS[key], unpack(fields, first, last))) do
      if value then
        local field = fields[first + index - 1]
        local is_read, sums = pcall(cmsgpack.unpack, value)
        is_read = is_read and type(sums) == 'table' and #sums > 0
        for index_of_sum = 1, is_read and #sums or 0 do is_read = is_read and type(sums[index_of_sum]) == 'number' end
        if not is_read then
          return refusal('the field ', field, ' of ', KEYS[key], ' holds no sums; delete it with HDEL')
        end
        numbers[key][field] = lengthen(field, sums)
      end
    end
  end
end

-- Sums of this call are added up in the place itself; then once to its buckets.
local function add(place, ...)
  local sums = place.sums or {}
  place.sums = sums
  for index = 1, select('#', ...) do sums[index] = (sums[index] or 0) + select(index, ...) end
end

local changed, clusters, unclustered = {}, {}, 0

local function add_to_cluster(place, key, cluster, w, y)
  local sums = numbers[key][cluster]
  local W, K = sums[1], sums[2]
  if not W then
    if (clusters[key] or lengths[key]) >= plan.max_clusters then
      unclustered = unclustered + 1
      return
    end
    clusters[key] = (clusters[key] or lengths[key]) + 1
    W, K = 0, 0
  elseif W > 0 then
    add(place, 1, 2 * W * w, W * w * y + K * w, 2 * K * w * y, 3 * W * w * (W + w),
      W * w * (4 * W * W + 6 * W * w + 4 * w * w))
  end
  sums[1], sums[2] = W + w, K + w * y
  changed[key] = changed[key] or {}
  changed[key][cluster] = sums
end

local acknowledge, note
if is_here then
  acknowledge, note = acknowledging(KEYS[1], plan.group, KEYS[3], 'verdicts:' .. plan.group, plan.entries[1][1])
end
local fresh = 0
for _, entry in ipairs(plan.entries) do
  if not is_here or acknowledge({entry[1]}) == 1 then
    fresh = fresh + 1
    for _, part in ipairs(entry[2]) do
      local place, w, y = plan.places[part[1]], part[2], part[3]
      if y < 0 then
        add(place, 1, w, w * w)
      else
        add(place, 1, w, w * y, w * w, w * w * y)
        if part[5] then add_to_cluster(plan.places[part[4]], part[5], part[6], w, y) end
      end
    end
    for _, increment in ipairs(entry[3]) do
      local amounts = counted[increment[1]].amounts
      if not increment[4] or redis.call('HSET', KEYS[increment[4]], increment[5], '') == 1 then
        amounts[increment[2]] = amounts[increment[2]] + increment[3]
      end
    end
  end
end
for key in pairs(once) do redis.call('EXPIRE', KEYS[key], plan.ttls[key - 3]) end
if is_here then note(plan.last) end
if fresh == 0 and is_here then return {0, 0} end

for _, place in ipairs(plan.places) do
  for bucket = 1, place.sums and #place or 0, 2 do
    local key, field = place[bucket], place[bucket + 1]
    local held = numbers[key][field]
    for index, sum in ipairs(place.sums) do held[index] = (held[index] or 0) + sum end
    changed[key] = changed[key] or {}
    changed[key][field] = held
  end
end
for key, of_key in pairs(counted) do
  for field, amount in pairs(of_key.amounts) do
    if amount ~= 0 then redis.call('HINCRBY', KEYS[key], field, amount) end
  end
  redis.call('EXPIRE', KEYS[key], plan.ttls[key - 3])
end
for key, fields in pairs(changed) do
  local arguments = {}
  for field, held in pairs(fields) do
    arguments[#arguments + 1] = field
    arguments[#arguments + 1] = cmsgpack.pack(shorten(field, held))
  end
  for first = 1, #arguments, 1000 do
    redis.call('HSET', KEYS[key], unpack(arguments, first, math.min(first + 999, #arguments)))
  end
  if lengths[key] == 0 then redis.call('EXPIRE', KEYS[key], plan.ttls[key - 3]) end
end
if is_here then
  redis.call('HINCRBY', KEYS[2], exported, fresh)
else
  redis.call('HSET', KEYS[1], plan.partition, plan.last)
  fresh = math.max(1, fresh)
end
return {fresh, unclustered}
