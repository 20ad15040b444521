-- @include guard
-- Batches and their leases. A batch is ready, leased or parked:
--
-- leases                 sorted set, batch id -> due time in ms; no TTL
-- holders                hash, batch id -> holder or 'parked'; no TTL
-- waiting                hash, judge model -> bytes of unfinished batches; no TTL
-- ready:<judge model>    sorted set, batch id -> creation time in ms; no TTL
-- batch:<id>             string, the batch as JSON; no TTL
-- tries:<id>             hash, evaluation id -> calls and cost of all rounds so far, as JSON; TTL set by put_back

-- Makes a batch ready for its judge model and counts its bytes as waiting.
--
-- keys    names of batch, leases, ready and waiting
-- batch   id, made_at_ms and judge_model
-- due     when sweep makes it ready again, should the ready set be lost, in ms
local function link_batch(keys, batch, due)
  redis.call('ZADD', keys.leases, due, batch.id)
  redis.call('ZADD', keys.ready, batch.made_at_ms, batch.id)
  redis.call('HINCRBY', keys.waiting, batch.judge_model, redis.call('STRLEN', keys.batch))
end

-- @script take
-- Leases the oldest ready batches of one judge model. A probe prefers batches never tried: a tried one may always fail,
-- and an endpoint that is otherwise well would be probed with nothing else.
--
-- KEYS[1] ready:<judge model> · KEYS[2] leases · KEYS[3] holders
-- KEYS[4] tries   prefix of tries:<batch id>; only read
-- ARGV[1] maximum · ARGV[2] holder · ARGV[3] length of the lease in ms · ARGV[4] only batches created before, in ms
-- ARGV[5] among how many the untried are preferred, 0 for strictly the oldest
-- Returns their ids.
local refused = guard({
  -- The first command needs memory, because a full Redis could not store verdicts, and nothing is begun there.
  {KEYS[2], 'zset', 'ZADD'}, {KEYS[3], 'hash', 'HSET'}, {KEYS[1], 'zset', 'ZREM'},
  {KEYS[4], false, 'EXISTS'},
})
if refused then return refused end
local due = now_ms() + ARGV[3]
local maximum, candidates = tonumber(ARGV[1]), tonumber(ARGV[5])
local taken = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '(' .. ARGV[4], 'LIMIT', 0, math.max(maximum, candidates))
if #taken > maximum then
  local untried, tried = {}, {}
  for _, batch in ipairs(taken) do
    local batches = redis.call('EXISTS', KEYS[4] .. ':' .. batch) == 0 and untried or tried
    batches[#batches + 1] = batch
    if #untried == maximum then break end
  end
  for index = 1, maximum - #untried do untried[#untried + 1] = tried[index] end
  taken = untried
end
for _, batch in ipairs(taken) do
  redis.call('ZADD', KEYS[2], due, batch)
  redis.call('HSET', KEYS[3], batch, ARGV[2])
  redis.call('ZREM', KEYS[1], batch)
end
return taken

-- @script renew
-- Renews the leases of one holder.
--
-- KEYS[1] leases · KEYS[2] holders
-- ARGV[1] length of the lease in ms · ARGV[2..] pairs of batch id and holder
-- Returns the ids of batches that the holder no longer holds.
local refused = guard({
  -- The first command needs no memory, so the script also runs on a full Redis.
  {KEYS[2], 'hash', 'HDEL', 'HGET'}, {KEYS[1], 'zset', 'ZADD'},
})
if refused then return refused end
local due = now_ms() + ARGV[1]
local lost = {}
for index = 2, #ARGV, 2 do
  if redis.call('HGET', KEYS[2], ARGV[index]) == ARGV[index + 1] then
    redis.call('ZADD', KEYS[1], 'XX', due, ARGV[index])
  else
    lost[#lost + 1] = ARGV[index]
  end
end
return lost

-- @script put_back
-- Returns an unfinished batch of its holder: ready at once, or parked.
--
-- KEYS[1] leases · KEYS[2] holders · KEYS[3] ready:<judge model>
-- KEYS[4] tries:<batch id>   TTL ARGV[6]
-- ARGV[1] batch id · ARGV[2] holder · ARGV[3] its creation time in ms · ARGV[4] delay in ms, 0 for none
-- ARGV[5] when a ready batch is due again, in ms · ARGV[6] TTL of the tries in s
-- ARGV[7..] pairs of evaluation id and calls and cost of all rounds so far
-- Returns 1 if the batch was the holder's.
local refused = guard({
  -- The first command needs no memory, so the script also runs on a full Redis.
  {KEYS[3], 'zset', 'ZREM', 'ZADD'}, {KEYS[1], 'zset', 'ZADD'}, {KEYS[2], 'hash', 'HDEL', 'HSET'},
  {KEYS[4], 'hash', 'HSET', 'EXPIRE'},
})
if refused then return refused end
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('ZREM', KEYS[3], ARGV[1])
local now = now_ms()
if tonumber(ARGV[4]) > 0 then
  redis.call('ZADD', KEYS[1], 'XX', now + ARGV[4], ARGV[1])
  redis.call('HSET', KEYS[2], ARGV[1], 'parked')
else
  redis.call('ZADD', KEYS[1], 'XX', now + ARGV[5], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
  redis.call('ZADD', KEYS[3], ARGV[3], ARGV[1])
end
for index = 7, #ARGV, 2 do redis.call('HSET', KEYS[4], ARGV[index], ARGV[index + 1]) end
if #ARGV > 6 then redis.call('EXPIRE', KEYS[4], ARGV[6]) end
return 1

-- @script set_aside
-- @include accounting
-- Parks a batch whose keys cannot be read, and counts it as `unreadable:<reason>` each time. Only the holder can.
--
-- KEYS[1] leases · KEYS[2] holders · KEYS[3] account:<day> · KEYS[4] account:all, see accounting.lua
-- ARGV[1] batch id · ARGV[2] holder · ARGV[3] delay in ms · ARGV[4] reason
-- Returns 1 if the batch was the holder's.
count('unreadable', 1)
count('unreadable:' .. ARGV[4], 1)
local refused = guard({
  {KEYS[2], 'hash', 'HSET', 'HGET'}, {KEYS[1], 'zset', 'ZADD'}, {KEYS[3], 'hash', 'HINCRBY'}, {KEYS[4], 'hash', 'HINCRBY'},
}) or guard_account(KEYS[3], KEYS[4])
if refused then return refused end
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('ZADD', KEYS[1], 'XX', now_ms() + ARGV[3], ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], 'parked')
write_account(KEYS[3], KEYS[4])
return 1

-- @script finish
-- Removes a batch whose evaluations are all in the ledger or dead; a second call changes nothing.
--
-- KEYS[1] leases · KEYS[2] holders · KEYS[3] waiting · KEYS[4] ready:<judge model> · KEYS[5] batch:<id>
-- KEYS[6] tries:<id> · KEYS[7] account:all
-- ARGV[1] batch id · ARGV[2] judge model
-- Returns the bytes of the batch.
local refused = guard({
  {KEYS[1], 'zset', 'ZREM', 'ZSCORE', 'ZCARD'}, {KEYS[2], 'hash', 'HDEL'}, {KEYS[3], 'hash', 'HINCRBY', 'HSET'}, {KEYS[4], 'zset', 'ZREM'},
  {KEYS[5], 'string', 'DEL'}, {KEYS[6], 'hash', 'DEL'}, {KEYS[7], 'hash', 'HINCRBY'},
}) or guard_counters(KEYS[3], {ARGV[2]})
if refused then return refused end
local size = redis.call('STRLEN', KEYS[5])
if redis.call('DEL', KEYS[5], KEYS[6]) > 0 and size > 0 then
  redis.call('HINCRBY', KEYS[3], ARGV[2], -size)
elseif redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  -- Somebody removed the batch alone, by EXPIRE as a rule.
  redis.call('HINCRBY', KEYS[7], 'vanished:batches', 1)
end
redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
-- Bytes of a batch that vanished are not known any more.
if redis.call('ZCARD', KEYS[1]) == 0 then redis.call('HSET', KEYS[3], ARGV[2], 0) end
return size

-- @script sweep
-- Makes due batches ready: their lease has expired, or their parking is over. Batches of judge models that the caller
-- does not know are left to workers that do.
--
-- KEYS[1] leases · KEYS[2] holders · KEYS[3..] ready:<judge model>
-- ARGV[1] maximum to move, and to look at in one step · ARGV[2] when a ready batch is due again, in ms
-- ARGV[3..] for each ready key the hash of its judge model in batch ids
-- Returns how many were made ready.
local writes = {{KEYS[1], 'zset', 'ZADD', 'ZRANGEBYSCORE'}, {KEYS[2], 'hash', 'HDEL'}}
for index = 3, #KEYS do writes[#writes + 1] = {KEYS[index], 'zset', 'ZADD'} end
local refused = guard(writes)
if refused then return refused end
local now = now_ms()
local ready_by_model = {}
for index = 3, #KEYS do ready_by_model[ARGV[index]] = KEYS[index] end
-- Unknown batches stay the most overdue, so that without the offset many of them would hide all others.
local moved, skipped = 0, 0
repeat
  local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', skipped, ARGV[1])
  for _, batch in ipairs(due) do
    local created, model_hash = batch:match('^(%x+)-(%x+)-')
    local ready = model_hash and ready_by_model[model_hash]
    if ready then
      redis.call('ZADD', KEYS[1], now + ARGV[2], batch)
      redis.call('HDEL', KEYS[2], batch)
      redis.call('ZADD', ready, 'NX', tonumber(created, 16), batch)
      moved = moved + 1
    else
      skipped = skipped + 1
    end
  end
until moved >= tonumber(ARGV[1]) or #due == 0
return moved

-- @script hold
-- Acquires, keeps or releases a lease that one worker has at a time. The holder gets it again, so a call whose reply was
-- lost can be repeated.
--
-- KEYS[1] one of Keys.locks   string, the holder; TTL ARGV[2]
-- ARGV[1] holder · ARGV[2] length of the lease in ms, 0 to release it
-- Returns 1 if the lease is the holder's.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
if tonumber(ARGV[2]) == 0 then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1

-- @script clock
-- Returns the time. If the clock was set back since the last call, due times move back with it: the lease of a dead
-- worker, a parking, and entries pending with a dead consumer would otherwise wait for as long as it was set back.
--
-- KEYS[1] clock          string, time of the last call in ms; no TTL
-- KEYS[2] leases
-- KEYS[3] feedback:due   sorted set, feedback as JSON -> time of its pass in ms; TTL set by ingest
-- KEYS[4] sessions:due   sorted set, see sessions.lua; no TTL
-- KEYS[5] traces         stream; no TTL
-- KEYS[6] verdicts       stream; no TTL
-- KEYS[7..] Keys.locks   strings, see hold. Their TTL follows the old clock as well, so they are deleted, and a live
--                        holder acquires its own again
-- ARGV[1] length of a lease in ms: due times within it need no change · ARGV[2] smallest set-back that counts, in ms
-- Returns the time in ms.
local refused = guard({
  -- The first command needs no memory, so the script also runs on a full Redis.
  {KEYS[1], 'string', 'DEL', 'SET'}, {KEYS[2], 'zset', 'ZINCRBY', 'ZRANGEBYSCORE'},
  {KEYS[3], 'zset', 'ZINCRBY', 'ZRANGEBYSCORE'}, {KEYS[4], 'zset', 'ZINCRBY', 'ZRANGEBYSCORE'},
  {KEYS[5], 'stream', 'XPENDING', 'XRANGE', 'XCLAIM', 'XINFO GROUPS'}, {KEYS[6], 'stream'}, {KEYS[7], 'string', 'DEL'},
})
if refused then return refused end
local now = now_ms()
local set_back_ms = tonumber(redis.call('GET', KEYS[1]) or 0) - now
redis.call('SET', KEYS[1], now)
if set_back_ms <= tonumber(ARGV[2]) then return now end

local function move_back(key)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, '(' .. now + ARGV[1], '+inf')) do
    redis.call('ZINCRBY', key, -set_back_ms, member)
  end
end

-- Idle times restart. Entries that were trimmed away are left to the consumer that claims and counts them.
local function reset_idle(stream, group)
  local after = '-'
  repeat
    local pending = redis.call('XPENDING', stream, group, after, '+', 1000)
    for _, entry in ipairs(pending) do
      local id, consumer = entry[1], entry[2]
      if #redis.call('XRANGE', stream, id, id) > 0 then
        redis.call('XCLAIM', stream, group, consumer, 0, id, 'IDLE', 0, 'JUSTID')
      end
      after = '(' .. id
    end
  until #pending < 1000
end

for index = 2, 4 do move_back(KEYS[index]) end
for index = 7, #KEYS do redis.call('DEL', KEYS[index]) end
for index = 5, 6 do
  if redis.call('EXISTS', KEYS[index]) == 1 then
    for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[index])) do reset_idle(KEYS[index], group[2]) end
  end
end
return now
