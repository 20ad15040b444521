-- Give evaluations up: each becomes one dead letter, with an outbox entry that tells of it; nothing in the ledger. One
-- whose retry has failed is a letter already, and in the books: it is only renewed.
--
-- KEYS[1] verdicts         stream; capped by ARGV[1]
-- KEYS[2] account:<day>    hash of counts; TTL set by ingest
-- KEYS[3] account:all      hash of counts; no TTL
-- KEYS[4] dead             hash, evaluation id -> letter as JSON; no TTL
-- KEYS[5] dead:due         sorted set, evaluation id -> time given up in ms; no TTL
-- KEYS[6] dead:retries     hash, evaluation id -> how often it was taken up by itself, a blank, and the batch of the
--                          retry that is under way or nothing; no TTL
-- KEYS[7..] per evaluation ledger:<id>                 string, only looked at
--                          chosen:<id>                 string; TTL ARGV[2]: it is not chosen again while it is dead
--                          dead:again:<judge model>    sorted set, evaluation id -> when it may be taken up by itself,
--                                                      in ms; TTL ARGV[2]
-- ARGV[1] cap of the outbox in entries · ARGV[2] TTL in s
-- ARGV[3] how long an evaluation waits before each time it is taken up by itself, in ms, with commas between
-- ARGV[4..] per evaluation: its id, letter as JSON, verdict as JSON, reason, when its batch was made as batch ids say
--           it, '1' where the reason may pass by itself
-- Before it stand shared/counts.lua and letters.lua.
-- Returns 1 for each that was given up anew, else 0; what is renewed is not new.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local waits = {}
for wait in ARGV[3]:gmatch('%d+') do waits[#waits + 1] = tonumber(wait) end

local function write(id, letter, again, times, passes)
  redis.call('HSET', KEYS[4], id, letter)
  redis.call('ZADD', KEYS[5], now, id)
  if passes == '1' and waits[times + 1] then
    redis.call('ZADD', again, now + waits[times + 1], id)
    redis.call('EXPIRE', again, ARGV[2])
  end
end

-- The letter of a retry was chosen when the first one was.
local function with_first_time(old, new)
  local first = old:match('.*"chosen_at":([%d%.eE+-]+)')
  local head, tail = new:match('^(.*"chosen_at":)[%d%.eE+-]+(.*)$')
  return first and head and head .. first .. tail or new
end

-- Only the batch of the retry renews: another one may still hold the evaluation from before.
local function renew(id, letter, reason, made, again, passes)
  local times, batch = (redis.call('HGET', KEYS[6], id) or ''):match('^(%d+) (.+)$')
  if not batch or batch:sub(1, #made) ~= made then return end
  local old = redis.call('HGET', KEYS[4], id)
  count('dead:' .. (reason_of(old) or reason), -1)
  count('dead:' .. reason, 1)
  redis.call('HSET', KEYS[6], id, times .. ' ')
  write(id, with_first_time(old, letter), again, tonumber(times), passes)
end

local buried = {}
for place = 1, (#KEYS - 6) / 3 do
  local ledger, chosen, again = unpack(KEYS, 4 + place * 3, 6 + place * 3)
  local id, letter, verdict, reason, made, passes = unpack(ARGV, place * 6 - 2, place * 6 + 3)
  buried[place] = 0
  if redis.call('EXISTS', ledger) == 0 then
    if redis.call('HEXISTS', KEYS[4], id) == 1 then
      renew(id, letter, reason, made, again, passes)
    else
      write(id, letter, again, 0, passes)
      redis.call('SET', chosen, '1', 'EX', ARGV[2])
      redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'v', '1', 'd', verdict)
      count('dead', 1)
      count('dead:' .. reason, 1)
      count('outbox', 1)
      buried[place] = 1
    end
  end
end
write_books(KEYS[2], KEYS[3])
return buried
