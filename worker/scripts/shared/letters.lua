-- Dead letters. It stands behind counts.lua.

-- The last one: only numbers follow the letter's own reason.
local function reason_of(letter)
  return letter:match('.*"reason":"([a-z_]+)"')
end

-- Take a letter out of `dead`, `dead:due` and `dead:retries`, and out of the books: whether there was one.
local function take_out(dead, due, retries, id)
  local letter = redis.call('HGET', dead, id)
  if not letter then return false end
  redis.call('HDEL', dead, id)
  redis.call('ZREM', due, id)
  redis.call('HDEL', retries, id)
  count('dead', -1)
  local reason = reason_of(letter)
  if reason then count('dead:' .. reason, -1) end
  return true
end
