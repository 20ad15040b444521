-- Choose among retained traces, count, and go on to the next piece, in one step. It takes effect only where the replay
-- stands: a call that is repeated, or another process on the same replay, changes nothing and is told how far it is.
--
-- KEYS[1] traces           stream, group plan.group; no TTL; only looked at
-- KEYS[2] leases           sorted set, batch id -> due time in ms; no TTL
-- KEYS[3] waiting          hash, judge model -> bytes of unfinished batches; no TTL
-- KEYS[4] account:<day>    hash of counts; TTL plan.account_ttl_s
-- KEYS[5] account:all      hash of counts; no TTL
-- KEYS[6] dead             hash, evaluation id -> letter; only looked at
-- KEYS[7] replay:<name>    hash: question, next, counts; TTL plan.chosen_ttl_s
-- KEYS[8..]                batch:<id> string, no TTL · ready:<judge model> sorted set, no TTL
--                          chosen:<id> string, TTL plan.chosen_ttl_s · ledger:<id> string, only looked at
--                          named by their index in the plan
-- ARGV[1] the plan, as msgpack; ARGV[2..] payloads of traces, named by their index in the plan
-- Before it stand shared/counts.lua, batches.lua, choosing.lua (`plan`, `now`, the batches), entry_ids.lua,
-- delivered.lua and settled.lua.
-- Returns all of replay:<name>; nothing where Redis has forgotten it.
if redis.call('HGET', KEYS[7], 'next') ~= plan.from then return redis.call('HGETALL', KEYS[7]) end

local found = plan.counts
local function find(name, amount)
  found[name] = (found[name] or 0) + amount
end

-- Past the ledger's memory nobody knows any more what was judged.
local oldest_ms = now - plan.chosen_ttl_s * 1000
local function is_gone(id)
  return tonumber(id:match('^%d+')) < oldest_ms or #redis.call('XRANGE', KEYS[1], id, id) == 0
end

local function is_finished(evaluation)
  return redis.call('EXISTS', KEYS[evaluation.ledger]) == 1 or redis.call('HEXISTS', KEYS[6], evaluation.id) == 1
end

local counted = {}
local function only_count(evaluations)
  local amount = 0
  for _, evaluation in ipairs(evaluations) do
    if not counted[evaluation.id] and redis.call('EXISTS', KEYS[evaluation.chosen]) == 0 then
      counted[evaluation.id] = true
      amount = amount + 1
    end
  end
  return amount
end

for _, trace in ipairs(plan.traces) do
  if is_gone(trace.id) then
    find('cut_off', 1)
  elseif not settled(trace.id) then
    find('not_read', 1)
  else
    local open = {}
    for _, evaluation in ipairs(trace.evaluations) do
      if not is_finished(evaluation) then open[#open + 1] = evaluation end
    end
    local new = plan.dry_run and only_count(open) or not plan.dry_run and choose(trace.payload, open) or 0
    find('chosen', new)
    find('already_judged', #trace.evaluations - new)
  end
end

write_batches()
write_books(KEYS[4], KEYS[5])
if next(counts) then redis.call('EXPIRE', KEYS[4], plan.account_ttl_s) end

redis.call('HSET', KEYS[7], 'next', plan.next)
for name, amount in pairs(found) do
  if amount ~= 0 then redis.call('HINCRBY', KEYS[7], name, amount) end
end
redis.call('EXPIRE', KEYS[7], plan.chosen_ttl_s)
return redis.call('HGETALL', KEYS[7])
