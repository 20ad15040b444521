-- Make batches ready that are due: their holder is gone, or their parking is over. Those of judge models that the
-- caller does not know are left to workers that do.
--
-- KEYS[1] leases     sorted set, batch id -> due time in ms; no TTL
-- KEYS[2] holders    hash, batch id -> holder or 'parked'; no TTL
-- KEYS[3..] ready:<judge model>   sorted set, batch id -> time of its making in ms; no TTL
-- ARGV[1] how many are looked at, at a time · ARGV[2] when a ready batch is looked at again, in ms
-- ARGV[3..] for each ready key the mark of its judge model in batch ids
-- Returns how many were made ready.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local ready_of = {}
for place = 3, #KEYS do ready_of[ARGV[place]] = KEYS[place] end
-- Those that are left stay the most overdue of all: they are passed by, or a crowd of them would hide the others.
local moved, passed = 0, 0
repeat
  local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', passed, ARGV[1])
  for _, batch in ipairs(due) do
    local made, mark = batch:match('^(%x+)-(%x+)-')
    local ready = mark and ready_of[mark]
    if ready then
      redis.call('ZADD', KEYS[1], now + ARGV[2], batch)
      redis.call('HDEL', KEYS[2], batch)
      redis.call('ZADD', ready, 'NX', tonumber(made, 16), batch)
      moved = moved + 1
    else
      passed = passed + 1
    end
  end
until moved >= tonumber(ARGV[1]) or #due == 0
return moved
