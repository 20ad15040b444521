-- @include guard
-- Spans that the gateway gathers by trace id until their trace is complete. Any gateway process adds to a trace, and any
-- joins it: under a lease, after which another process takes it.
--
-- gather               hash, no TTL; its field: bytes, of all gathered spans
-- gather:due           sorted set, trace id -> time in ms when it is joined, or when its lease ends; no TTL
-- gather:<trace id>    hash, TTL renewed with each part; its fields:
--     first, bytes, count    time of the first part in ms, bytes and number of all parts
--     root                   there once the root span has arrived
--     1, 2, 3 …              the parts, as worker/features/gateway/gathering.py encodes them

local function number_of(key, field)
  return tonumber(redis.call('HGET', key, field) or 0) or 0
end

-- @script gather_add
-- Adds parts of traces, or none where they would pass the bound of all.
--
-- KEYS[1] gather · KEYS[2] gather:due · KEYS[3..] gather:<trace id>
-- ARGV[1] wait after the last part in ms · ARGV[2] the same without a root · ARGV[3] wait after the first part in ms
-- ARGV[4] maximum bytes of a trace · ARGV[5] maximum bytes of all · ARGV[6] TTL in s
-- ARGV[7..] for each trace: trace id, '1' with a root, part
-- Returns nothing where it is full, else the bytes of all and the places of traces that are too large, from 0.
local writes = {{KEYS[2], 'zset', 'ZADD'}, {KEYS[1], 'hash', 'HINCRBY'}, {KEYS[3], 'hash', 'HSET', 'EXPIRE'}}
for index = 4, #KEYS do writes[#writes + 1] = {KEYS[index], 'hash'} end
local refused = guard(writes)
if refused then return refused end

local added, now = 0, now_ms()
for index = 9, #ARGV, 3 do added = added + #ARGV[index] end
-- Where nothing is gathered, what the counter has left belonged to expired traces.
if redis.call('ZCARD', KEYS[2]) == 0 then redis.call('HSET', KEYS[1], 'bytes', 0) end
local all = number_of(KEYS[1], 'bytes')
if all + added > tonumber(ARGV[5]) then return false end

local too_large = {}
for index = 3, #KEYS do
  local key, first_argument = KEYS[index], 7 + 3 * (index - 3)
  local id, has_root, part = ARGV[first_argument], ARGV[first_argument + 1] == '1', ARGV[first_argument + 2]
  if number_of(key, 'bytes') + #part > tonumber(ARGV[4]) then
    too_large[#too_large + 1] = index - 3
  else
    if redis.call('HEXISTS', key, 'first') == 0 then redis.call('HSET', key, 'first', now) end
    redis.call('HSET', key, redis.call('HINCRBY', key, 'count', 1), part)
    redis.call('HINCRBY', key, 'bytes', #part)
    all = all + #part
    if has_root then redis.call('HSET', key, 'root', 1) end
    local idle = redis.call('HEXISTS', key, 'root') == 1 and ARGV[1] or ARGV[2]
    redis.call('ZADD', KEYS[2], math.min(number_of(key, 'first') + ARGV[3], now + idle), id)
    redis.call('EXPIRE', key, ARGV[6])
  end
end
redis.call('HSET', KEYS[1], 'bytes', all)
return {all, unpack(too_large)}

-- @script gather_take
-- Leases the traces that are due.
--
-- KEYS[1] gather · KEYS[2] gather:due · gather:<trace id>
-- ARGV[1] length of the lease in ms · ARGV[2] maximum of traces · ARGV[3] bytes after which no further one is taken
-- Returns for each trace its id and the fields and values of its hash; none of a trace that has expired.
local refused = guard({{KEYS[2], 'zset', 'ZADD', 'ZREM', 'ZRANGEBYSCORE'}, {KEYS[1], 'hash'}})
if refused then return refused end
local now, size, taken = now_ms(), 0, {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, ARGV[2])) do
  local key = KEYS[1] .. ':' .. id
  if size >= tonumber(ARGV[3]) then break end
  local fields = redis.call('HGETALL', key)
  if #fields == 0 then
    redis.call('ZREM', KEYS[2], id) -- its TTL has ended: no gateway joined it for so long
    taken[#taken + 1] = {id, fields}
  else
    redis.call('ZADD', KEYS[2], now + ARGV[1], id)
    size = size + number_of(key, 'bytes')
    taken[#taken + 1] = {id, fields}
  end
end
return taken

-- @script gather_done
-- Removes published parts. Parts that arrived meanwhile stay and are joined later.
--
-- KEYS[1] gather · KEYS[2] gather:due · gather:<trace id>
-- ARGV[1..] for each trace: its id, the number of its published parts
-- Returns the bytes of all that are left.
-- The first command needs no memory, so the script also runs on a full Redis.
local refused = guard({{KEYS[2], 'zset', 'ZREM', 'ZCARD'}, {KEYS[1], 'hash', 'HDEL', 'HSET', 'HGET'}})
if refused then return refused end
local now, all = now_ms(), number_of(KEYS[1], 'bytes')
for index = 1, #ARGV, 2 do
  local id, count = ARGV[index], tonumber(ARGV[index + 1])
  local key = KEYS[1] .. ':' .. id
  local held = number_of(key, 'count')
  if held == count then
    -- Its own bytes, for another process may have removed some of the parts.
    all = all - number_of(key, 'bytes')
    redis.call('ZREM', KEYS[2], id)
    redis.call('DEL', key)
  elseif redis.call('HEXISTS', key, count) == 1 then
    local size = 0
    for part = 1, count do
      size = size + redis.call('HSTRLEN', key, part)
      redis.call('HDEL', key, part)
    end
    redis.call('HSET', key, 'first', now)
    redis.call('HINCRBY', key, 'bytes', -size)
    all = all - size
  end
end
redis.call('HSET', KEYS[1], 'bytes', math.max(0, all))
return all
