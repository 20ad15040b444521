-- Copies of labelled traces. Their bytes are counted, so that labels cannot fill Redis.
-- @include guard

-- @script keep_labelled
-- Keeps a copy, which replaces an earlier one of the same trace.
--
-- KEYS[1] labels:traces   hash: trace id → payload; no TTL
-- KEYS[2] labels:bytes    string: the bytes of all payloads; no TTL
-- ARGV[1] the most bytes of all copies · ARGV[2] trace id · ARGV[3] payload
-- Returns 1 if the copy is kept, 0 if there is no room for it.
local refused = guard({{KEYS[1], 'hash', 'HSET', 'HSTRLEN'}, {KEYS[2], 'string', 'SET'}})
if refused then return refused end
local total = tonumber(redis.call('GET', KEYS[2]) or 0) + #ARGV[3] - redis.call('HSTRLEN', KEYS[1], ARGV[2])
if total > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[2], ARGV[3])
redis.call('SET', KEYS[2], total)
return 1

-- @script forget_labelled
-- Removes copies.
--
-- KEYS as of keep_labelled · ARGV trace ids
-- Returns the number of copies that were removed.
local refused = guard({{KEYS[1], 'hash', 'HDEL', 'HSTRLEN'}, {KEYS[2], 'string', 'SET'}})
if refused then return refused end
local total, removed = tonumber(redis.call('GET', KEYS[2]) or 0), 0
for _, trace_id in ipairs(ARGV) do
  local size = redis.call('HSTRLEN', KEYS[1], trace_id)
  if redis.call('HDEL', KEYS[1], trace_id) == 1 then
    removed, total = removed + 1, total - size
  end
end
if removed > 0 then redis.call('SET', KEYS[2], math.max(0, total)) end
return removed
