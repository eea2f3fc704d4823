"""What is asked of the cache's server in one go, so that nothing comes in between."""

# Note [A revision is a nonce]
# Each value is stored under a key that contains its revision, a random nonce kept beside it. A reader takes
# the revision first, then loads; a writer takes it away after commit, and the next reader makes up another.
# So what a slow reader stores goes under a revision that nobody asks for any more, and neither a flush nor an
# eviction brings one back. To take away needs no memory: a full server can be told, too.

NOW = "local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000)"

# What the lock of a rebuild says when that has failed: nobody is to try until it ends.
COOL = "cool"

# KEYS: revision, and marks if it is strict. ARGV: a new revision, its seconds, how value and rebuild keys
# begin, a token with the milliseconds for which it may lead (none: it only looks)
# → revision, whether a writer has marked it, the value, its milliseconds left, and a turn. Of a value: 1 if
# it is not being rebuilt. Of none: as LEAD says. It begins by deleting what is never there: a server that has
# become a replica refuses that, where it would let its clients read what it still holds.
READ = f"""
redis.call('DEL', KEYS[1] .. ':')
local revision = redis.call('GET', KEYS[1])
if not revision then
    redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
    revision = ARGV[1]
end
if KEYS[2] and redis.call('EXISTS', KEYS[2]) == 1 then
    {NOW}
    if redis.call('ZCOUNT', KEYS[2], now, '+inf') > 0 then return {{revision, 1, false, 0, 0}} end
end
local key, rebuild = ARGV[3] .. revision, ARGV[4] .. revision
local value = redis.call('GET', key)
if value then
    return {{revision, 0, value, redis.call('PTTL', key), 1 - redis.call('EXISTS', rebuild)}}
end
if ARGV[6] and redis.call('SET', rebuild, ARGV[5], 'NX', 'PX', ARGV[6]) then
    return {{revision, 0, false, 0, 1}}
end
local says = redis.call('GET', rebuild)
if ARGV[6] and says == ARGV[5] then return {{revision, 0, false, 0, 1}} end
return {{revision, 0, false, 0, says == '{COOL}' and -redis.call('PTTL', rebuild) or 0}}"""

# KEYS: rebuild. ARGV: a token, milliseconds. → 1: be the one who rebuilds (or go on: it may have been said
# before, and the answer lost); 0: another is; or how many milliseconds nobody is to try, as a negative
# number
LEAD = f"""
if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
local says = redis.call('GET', KEYS[1])
if says == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return says == '{COOL}' and -redis.call('PTTL', KEYS[1]) or 0"""

# KEYS: value, rebuild. ARGV: token, text, milliseconds. Only who still leads stores: a leader that took too
# long might put an older value over that of its follower.
STORE = """
if redis.call('GET', KEYS[2]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('DEL', KEYS[2])
return 1"""

# KEYS: rebuild. ARGV: token, milliseconds in which nobody is to try
GIVE_UP = f"""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], '{COOL}', 'PX', ARGV[2])
return 1"""

# KEYS: revision. ARGV: how the rebuild key begins, token
LET_GO = """
local revision = redis.call('GET', KEYS[1])
if not revision or redis.call('GET', ARGV[1] .. revision) ~= ARGV[2] then return 0 end
return redis.call('DEL', ARGV[1] .. revision)"""

# KEYS: revision, marks. ARGV: writer, milliseconds. The revision goes, too: what was loaded before the commit
# and comes late is not there when the mark ends.
MARK = f"""
{NOW}
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZADD', KEYS[2], now + ARGV[2], ARGV[1])
local last = redis.call('ZREVRANGE', KEYS[2], 0, 0, 'WITHSCORES')
redis.call('PEXPIREAT', KEYS[2], last[2])
redis.call('DEL', KEYS[1])
return 1"""

# KEYS: of each namespace the revision, the marks, and when its kind was told last. ARGV: writer. All at once:
# a reader in between would build one of the new values of an old one.
INVALIDATE = f"""
{NOW}
for i = 1, #KEYS, 3 do
    redis.call('DEL', KEYS[i])
    redis.call('ZREM', KEYS[i + 1], ARGV[1])
end
for i = 1, #KEYS, 3 do redis.pcall('SET', KEYS[i + 2], now) end
return 1"""

# KEYS: a book. ARGV: seconds it is kept, then field and amount in turns; a field that ends in _max keeps the
# largest
BOOK = """
for i = 2, #ARGV, 2 do
    if string.sub(ARGV[i], -4) ~= '_max' then
        redis.call('HINCRBYFLOAT', KEYS[1], ARGV[i], ARGV[i + 1])
    elseif tonumber(redis.call('HGET', KEYS[1], ARGV[i]) or '0') < tonumber(ARGV[i + 1]) then
        redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
    end
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1"""
