-- Deal with late feedback whose traces were sought: what the rules ask for goes into batches, and the feedback is
-- gathered no more, in one step. Only feedback that is still gathered takes effect: a call that is repeated, or a pass
-- that another worker makes at the same time, changes nothing.
--
-- KEYS[1] traces           stream, group ARGV.group; no TTL; only looked at
-- KEYS[2] leases           sorted set, batch id -> due time in ms; no TTL
-- KEYS[3] waiting          hash, judge model -> bytes of unfinished batches; no TTL
-- KEYS[4] account:<day>    hash of counts; TTL ARGV.account_ttl_s
-- KEYS[5] account:all      hash of counts; no TTL
-- KEYS[6] feedback:due     sorted set, feedback as JSON -> time of its pass in ms; TTL set by ingest
-- KEYS[7..]                batch:<id> string, no TTL · chosen:<id> string, TTL ARGV.chosen_ttl_s
--                          ready:<judge model> sorted set, no TTL; named by their index in the plan
-- ARGV[1] the plan, as msgpack; ARGV[2..] payloads of traces, named by their index in the plan
-- Before it stand shared/counts.lua, batches.lua, choosing.lua (`plan`, `now`, the batches), entry_ids.lua,
-- delivered.lua and settled.lua.
-- Returns how much feedback ended under which outcome, and the batches made.
local function all_settled(publications)
  for _, one in ipairs(publications) do
    if not settled(one.id) then return false end
  end
  return true
end

for _, trace in ipairs(plan.traces) do
  local gathered = {}
  for _, member in ipairs(trace.members) do
    if redis.call('ZSCORE', KEYS[6], member) then gathered[#gathered + 1] = member end
  end
  if #gathered == 0 then
    -- Dealt with before.
  elseif not all_settled(trace.publications) then
    for _, member in ipairs(gathered) do redis.call('ZADD', KEYS[6], 'XX', now + plan.wait_ms, member) end
  else
    local asked, new = 0, 0
    for _, publication in ipairs(trace.publications) do
      asked = asked + #publication.evaluations
      new = new + choose(publication.payload, publication.evaluations)
    end
    for _, member in ipairs(gathered) do redis.call('ZREM', KEYS[6], member) end
    -- Of several complaints about one trace the first has pulled it in.
    local first = new > 0 and 1 or 0
    finish_feedback('pulled', first)
    local rest = #trace.publications == 0 and 'not_found' or asked == 0 and 'no_rule' or 'already_judged'
    finish_feedback(rest, #gathered - first)
  end
end

local made = write_batches()
write_books(KEYS[4], KEYS[5])
if next(counts) then redis.call('EXPIRE', KEYS[4], plan.account_ttl_s) end

return cjson.encode({outcomes = filled(feedback), made = filled(made)})
