-- Choose dead letters of one judge model again: one batch, with the evaluations' own ids. They stay dead letters until
-- their verdicts are in the ledger; a mark keeps a second retry away. A call that is repeated changes nothing.
--
-- KEYS[1] dead                       hash, evaluation id -> letter as JSON; no TTL; only looked at
-- KEYS[2] dead:retries               hash, evaluation id -> times taken up by itself, batch of its retry; no TTL
-- KEYS[3] dead:again:<judge model>   sorted set, evaluation id -> when it may be taken up by itself; TTL set by bury.lua
-- KEYS[4] leases                     sorted set, batch id -> due time in ms; no TTL
-- KEYS[5] waiting                    hash, judge model -> bytes of unfinished batches; no TTL
-- KEYS[6] batch:<id>                 string; no TTL
-- KEYS[7] ready:<judge model>        sorted set, batch id -> time of its making in ms; no TTL
-- KEYS[8] tries:<id>                 hash, evaluation id -> calls so far; TTL plan.tries_ttl_s
-- KEYS[9..]                          batch:<id> of earlier retries, named by their index in the plan; only looked at
-- ARGV[1] the plan, as msgpack; ARGV[2..] payloads of traces, named by their index in the plan
-- Before it stands shared/batches.lua.
-- Returns per letter, in the order of the plan: 1 chosen, 0 under way already, -1 no dead letter any more.
local plan = cmsgpack.unpack(ARGV[1])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local answers, items, tries = {}, {}, {}

-- A retry is under way while its batch is there. `seen` is what the caller saw: its batch is the one it names.
local function answer_for(letter)
  if redis.call('HEXISTS', KEYS[1], letter.id) == 0 then return -1 end
  local mark = redis.call('HGET', KEYS[2], letter.id) or ''
  if mark:match('^%d+ (.+)$') == plan.batch_id then return 1, true end
  if mark ~= letter.seen then return 0 end
  if letter.earlier > 0 and redis.call('EXISTS', KEYS[letter.earlier]) == 1 then return 0 end
  return 1
end

local function choose(letter)
  local times = tonumber((redis.call('HGET', KEYS[2], letter.id) or ''):match('^%d+') or 0)
  if plan.automatic then times = times + 1 end
  redis.call('HSET', KEYS[2], letter.id, times .. ' ' .. plan.batch_id)
  redis.call('ZREM', KEYS[3], letter.id)
  tries[#tries + 1] = letter.id
  tries[#tries + 1] = letter.attempts
end

for _, trace in ipairs(plan.traces) do
  local texts = {}
  for _, letter in ipairs(trace.letters) do
    local answer, repeated = answer_for(letter)
    answers[#answers + 1] = answer
    if answer == 1 and not repeated then
      choose(letter)
      texts[#texts + 1] = letter.text
    end
  end
  if #texts > 0 then
    items[#items + 1] = '{"trace":' .. ARGV[trace.payload] .. ',"evaluations":[' .. table.concat(texts, ',') .. ']}'
  end
end

if #items > 0 then
  local payload = plan.head .. table.concat(items, ',') .. ']}'
  local keys = {batch = KEYS[6], leases = KEYS[4], ready = KEYS[7], waiting = KEYS[5]}
  local batch = {id = plan.batch_id, made_at_ms = plan.made_at_ms, judge_model = plan.judge_model}
  write_batch(keys, batch, payload, now + plan.ready_ms)
  redis.call('HSET', KEYS[8], unpack(tries))
  redis.call('EXPIRE', KEYS[8], plan.tries_ttl_s)
end
return answers
