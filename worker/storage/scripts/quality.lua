-- @include guard streams
-- Sums of the monitor: which verdicts came in which bucket of time, by series and class of sampling probability.
--
-- quality:<series>:<day>           hash, buckets of an hour, 00 to 23; TTL of 90 days
-- quality:<series>:<day>:<hour>    hash, buckets of five minutes, 00 to 11; TTL of 3 days
--   <bucket><letter>   judgements that pass or fail, by class of their weights; A: from 1, B: from 2, C: from 4, ...
--                      n, Σw, Σw·y, Σw², Σw²·y; y is 1 for a pass
--   <bucket>s          judgements that came to a session with earlier ones, and what sums over sessions have beyond
--                      those over single judgements; W = Σw and K = Σw·y of a session: ΣW² - Σw², ΣWK - Σw²·y, ΣK² - Σw²·y
--   <bucket>a, u       abstained and unscored: n, Σw, Σw²
-- quality:<series>:<period>:<part> hash, cluster -> W, K of its judgements so far; TTL of two periods
-- quality:<kind>:<day>             hash, labels as JSON -> count, such as those of repeated judgings; TTL of 90 days
--
-- Values of sums are msgpack: a whole number takes 1 to 5 bytes, so that a hash of a day stays in Redis' compact encoding.

-- @script add_quality
-- Acknowledges outbox entries for the monitor and adds their judgements to the sums, in one step.
--
-- KEYS[1] verdicts, stream · KEYS[2] account:all · KEYS[3] groups, see streams.lua
-- KEYS[4..] hashes of sums, clusters and counts, named by their index in the plan
-- ARGV[1] the plan, as msgpack, see worker/export/sums.py: group, last (of the entries), max_clusters,
--         ttls {key, s}, cells {hour's key, hour, five minutes' key, five minutes},
--         entries {id, {{cell, class, w, y, cluster's key or 0, cluster}, ...}, {{key, field, amount}, ...}}
-- Returns how many entries were acknowledged now for the first time, and how many of their judgements came without
-- their cluster because its hash is full.
local plan = cmsgpack.unpack(ARGV[1])
local writes = {}
for place = 4, #KEYS do writes[#writes + 1] = {KEYS[place], 'hash', 'HSET', 'HGET', 'HLEN', 'EXPIRE', 'HINCRBY'} end
writes[#writes + 1] = {KEYS[1], 'stream', 'XACK'}
writes[#writes + 1] = {KEYS[2], 'hash', 'HINCRBY'}
writes[#writes + 1] = {KEYS[3], 'hash', 'HGET', 'HSET'}
local exported = 'exported:' .. plan.group
local refused = guard(writes) or guard_counters(KEYS[2], {exported})
if refused then return refused end

local counted = {}
for _, entry in ipairs(plan.entries) do
  for _, increment in ipairs(entry[3]) do
    local names = counted[increment[1]] or {}
    names[#names + 1] = increment[2]
    counted[increment[1]] = names
  end
end
for key, names in pairs(counted) do
  refused = guard_counters(KEYS[key], names)
  if refused then return refused end
end

local sums, lengths, broken = {}, {}, nil

-- The numbers of a field, read from Redis once; all are read before the first write.
local function numbers(key, field)
  local of_key = sums[key] or {}
  sums[key] = of_key
  if not of_key[field] then
    local stored = redis.call('HGET', KEYS[key], field)
    local is_read, found = true, {}
    if stored then is_read, found = pcall(cmsgpack.unpack, stored) end
    if not is_read or type(found) ~= 'table' then
      broken = refusal('the field ', field, ' of ', KEYS[key], ' holds no sums; delete it with HDEL')
      found = {}
    end
    of_key[field] = {found = found, is_new = not stored}
  end
  return of_key[field]
end

local function add(key, field, ...)
  local held = numbers(key, field)
  held.is_changed = true
  for place, amount in ipairs({...}) do held.found[place] = (held.found[place] or 0) + amount end
end

for _, entry in ipairs(plan.entries) do
  for _, part in ipairs(entry[2]) do
    local cell, class = plan.cells[part[1]], part[2]
    numbers(cell[1], cell[2] .. class)
    numbers(cell[3], cell[4] .. class)
    if part[5] > 0 then
      numbers(cell[1], cell[2] .. 's')
      numbers(cell[3], cell[4] .. 's')
      numbers(part[5], part[6])
      lengths[part[5]] = lengths[part[5]] or redis.call('HLEN', KEYS[part[5]])
    end
  end
end
if broken then return broken end

local unclustered = 0
local function add_to_cluster(cell, key, cluster, w, y)
  local held = numbers(key, cluster)
  if held.is_new and not held.is_changed then
    if lengths[key] >= plan.max_clusters then
      unclustered = unclustered + 1
      return
    end
    lengths[key] = lengths[key] + 1
  end
  local W, K = held.found[1] or 0, held.found[2] or 0
  if W > 0 then
    local more = {1, 2 * W * w, W * w * y + K * w, 2 * K * w * y}
    add(cell[1], cell[2] .. 's', unpack(more))
    add(cell[3], cell[4] .. 's', unpack(more))
  end
  add(key, cluster, w, w * y)
end

local function add_judgement(part)
  local cell, class, w, y = plan.cells[part[1]], part[2], part[3], part[4]
  local amounts = {1, w, w * y, w * w, w * w * y}
  if class == 'a' or class == 'u' then amounts = {1, w, w * w} end
  add(cell[1], cell[2] .. class, unpack(amounts))
  add(cell[3], cell[4] .. class, unpack(amounts))
  if part[5] > 0 then add_to_cluster(cell, part[5], part[6], w, y) end
end

local fresh = 0
for _, entry in ipairs(plan.entries) do
  if redis.call('XACK', KEYS[1], plan.group, entry[1]) == 1 then
    fresh = fresh + 1
    for _, part in ipairs(entry[2]) do add_judgement(part) end
    for _, increment in ipairs(entry[3]) do
      local key = increment[1]
      redis.call('HINCRBY', KEYS[key], increment[2], increment[3])
      redis.call('EXPIRE', KEYS[key], plan.ttls[key - 3])
    end
  end
end
if fresh == 0 then return {0, 0} end
for key, fields in pairs(sums) do
  local changed = {}
  for field, held in pairs(fields) do
    if held.is_changed then
      changed[#changed + 1] = field
      changed[#changed + 1] = cmsgpack.pack(held.found)
    end
  end
  for first = 1, #changed, 1000 do
    redis.call('HSET', KEYS[key], unpack(changed, first, math.min(first + 999, #changed)))
  end
  if #changed > 0 then redis.call('EXPIRE', KEYS[key], plan.ttls[key - 3]) end
end
redis.call('HINCRBY', KEYS[2], exported, fresh)
note_acknowledged(KEYS[3], 'verdicts:' .. plan.group, plan.last)
return {fresh, unclustered}
