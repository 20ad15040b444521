-- Shared by nearly every script: the checks before the first write, the time, and field-value lists as tables.
--
-- Redis rolls nothing back: a script that fails in the middle leaves half of its work done. So each script declares
-- what it will write, and guard() checks the types of the keys, the rights of the Redis user and the memory first.
-- An error of these functions begins with REFUSED and says what is wrong and how to fix it.

local LENGTH_OF = {hash = 'HLEN', zset = 'ZCARD', stream = 'XLEN', string = 'STRLEN'}

-- Arguments after the key with which a command fails or finds nothing, whatever the key holds. Redis checks the user's
-- rights, and its own memory, before it reads them.
local HARMLESS = {
  DEL = {}, EXISTS = {}, GET = {}, PERSIST = {}, STRLEN = {}, EXPIRE = {'x'}, HDEL = {''}, HEXISTS = {''}, HGET = {''}, HGETALL = {}, HINCRBY = {'', 'x'},
  HMGET = {''}, HSET = {'', '', ''}, HSTRLEN = {''}, PEXPIRE = {'x'}, SET = {'', 'x'}, TTL = {}, XACK = {'', 'x'}, XADD = {'x', '', ''},
  XCLAIM = {'', '', 'x', '0-1'}, XDEL = {'x'}, XLEN = {}, XPENDING = {'', 'x', 'x', 'x'}, XRANGE = {'x', 'x'},
  XTRIM = {'MAXLEN', 'x'}, ZADD = {'x', ''}, ZCARD = {}, ZINCRBY = {'x', ''}, ZRANGEBYSCORE = {'1', '0'}, ZREM = {''},
  ZSCORE = {''}, HLEN = {}, HVALS = {}, ['XINFO GROUPS'] = {}, ['XINFO STREAM'] = {}, ['MEMORY USAGE'] = {},
}

-- Calls a command, or a subcommand such as `XINFO GROUPS`, with its harmless arguments.
local function with_arguments(call, command, key)
  local first, second = command:match('^(%S+) (%S+)$')
  if first then return call(first, second, key) end
  return call(command, key, unpack(HARMLESS[command] or error('add ' .. command .. ' to HARMLESS in guard.lua')))
end

local function refusal(...)
  return redis.error_reply('REFUSED ' .. table.concat({...}))
end

-- Returns an error if Redis would refuse the command, else ''.
local function run_harmless(command, key)
  -- These have no form that fails, so they get a key that never exists.
  local name = (command == 'DEL' or command == 'PERSIST') and key .. ':' or key
  local answer = with_arguments(redis.pcall, command, name)
  local message = type(answer) == 'table' and answer.err or ''
  if message:find('OOM', 1, true) or message:find('READONLY', 1, true) then return answer end
  -- Redis 6.2 has no NOPERM code in errors of scripts.
  local is_denied = message:find('NOPERM', 1, true) or message:find("can't run this", 1, true)
    or message:find("can't access", 1, true)
  return is_denied and refusal('the Redis user may not run ', command, ' on ', key, '; allow it with ACL SETUSER') or ''
end

local function may_run(command, key)
  if redis.acl_check_cmd then return with_arguments(redis.acl_check_cmd, command, key) end
  return run_harmless(command, key) == ''
end

-- Returns an error if something prevents these writes, else nil.
--
-- writes   list of {key, type or false, commands ...}. The first command of the first write decides what happens on a
--          full Redis: if it needs memory, the whole script is refused; if it needs none, the whole script runs.
local function guard(writes)
  for index, write in ipairs(writes) do
    local key, kind = write[1], write[2]
    if kind then
      local length = redis.pcall(LENGTH_OF[kind], key)
      if type(length) == 'table' then
        if not length.err:find('WRONGTYPE', 1, true) then return length end
        return refusal('the key ', key, ' holds no ', kind, '; rename it or delete it')
      end
    end
    for position = 3, #write do
      local command = write[position]
      if index == 1 and position == 3 then
        local answer = run_harmless(command, key)
        if answer ~= '' then return answer end
      elseif not may_run(command, key) then
        return refusal('the Redis user may not run ', command, ' on ', key, '; allow it with ACL SETUSER')
      end
    end
  end
end

local LARGEST = 2 ^ 62

-- Returns an error if a field to be incremented is no whole number, or too large to grow; else nil.
local function guard_counters(key, names)
  for first = 1, #names, 1000 do
    local last = math.min(first + 999, #names)
    for index, value in ipairs(redis.call('HMGET', key, unpack(names, first, last))) do
      if value and not (value:match('^-?%d+$') and math.abs(tonumber(value)) < LARGEST) then
        return refusal('the field ', names[first + index - 1], ' of ', key, ' is no whole number below 2^62; correct it with HSET')
      end
    end
  end
end

-- The time by Redis' clock in ms since the epoch; it does not pass within a script.
local clock
local function now_ms()
  clock = clock or redis.call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

-- A reply of alternating names and values as a table.
local function pairs_of(list)
  local result = {}
  for index = 1, #list, 2 do result[list[index]] = list[index + 1] end
  return result
end
