"""Words of queries and descriptions: splitting, stems, verbs, synonyms."""

from __future__ import annotations

import re
from functools import lru_cache

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_APOSTROPHE = re.compile(r"['\u2019](?:s|t|re|ve|ll|d|m)?\b")
_ENDINGS = (
    ("ization", "iz"),
    ("isation", "iz"),
    ("ations", ""),
    ("ation", ""),
    ("ments", ""),
    ("ment", ""),
    ("ises", "iz"),
    ("ized", "iz"),
    ("izes", "iz"),
    ("ise", "iz"),
    ("ize", "iz"),
    ("ions", ""),
    ("ion", ""),
    ("ings", ""),
    ("ing", ""),
    ("ies", "y"),
    ("ied", "y"),
    ("ers", ""),
    ("er", ""),
    ("ed", ""),
    ("es", ""),
    ("s", ""),
    ("e", ""),
)
_SHORTEST_STEM = 3

_STOP_WORDS = """
a all an and any anyone are as at be been both by can certain could current currently did do does every everybody
everyone existing for from given had has have having her his how i if in into is it its just me my need of off on one or
our out particular please so some somebody someone something specified than that the their them then there these they
this those to too up us via want was we were what when where which who whose will with within without would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Words that the ranking ignores, unless a query consists of such words only."""

PHRASES = tuple(
    (re.compile(rf"\b{found}\b"), put)
    for found, put in (
        (r"turn(?:s|ed)? off|switch off|shut off", "disable"),
        (r"turn(?:s|ed)? on|switch on", "enable"),
        (r"set up|sign up", "create"),
        (r"get rid of|throw away|for good", "delete"),
        (r"take away|take off|kick out", "remove"),
        (r"look up|look for", "search"),
        (r"how (?:many|much)", "get count"),
        (r"log(?:ged)? in|sign in", "login"),
        (r"pay out", "payout"),
        (r"pull requests?|prs?", "pull"),
        (r"by hand", "manually dispatch"),
        (r"check ?out (?!page|session)", "checkout "),
        (r"let (\w+) go", r"remove \1"),
        (r"give (\w+) access", r"add \1 access"),
        (r"belongs? to|part of", "in"),
        (r"be part of", "join"),
        (r"find out", "get"),
        (r"write to", "send"),
        (r"move to", "transfer"),
        (r"start (?:a|the) payment|take (?:a|the) payment", "create payment"),
    )
)
"""Phrases of a query, and the words that replace them before the query is read."""

_VERBS = {
    "read": "get list show find read view fetch retrieve return search check download compare see display browse query "
    "inspect describe lookup preview look tell know who which what how gets lists watch export obtain",
    "create": "create add make new open publish upload post invite start register generate insert attach "
    "send build launch begin schedule write copy duplicate clone import share assign",
    "write": "set put save submit store",
    "update": "update edit change rename modify replace adjust configure mark enable disable approve lock unlock "
    "move merge transfer restore protect pin unpin follow confirm accept reject finalize pause resume "
    "render run rerun trigger dispatch archive close reopen",
    "delete": "delete remove cancel unfollow unstar drop erase destroy revoke detach clear leave uninstall dismiss "
    "void",
}
_SCOPES = """
org organization enterprise legacy user team authenticated public private default global all old deprecated beta preview
test environment codespace self hosted
"""

_SYNONYMS = """
add: create .8, invite .5, attach .5, set .3
alert: warning .6, notification .3
answer: reply .9, respond .8, response .6, comment .4
ask: request .9
ban: block .9
bill: invoice .9, charge .5
block: ban .7
bucket: container .5
build: run .4, image .5, workflow .3
bug: issue .9
buy: purchase .9, order .8, checkout .5
cancel: delete .6, abort .7, stop .6
card: source .4, payment .3, method .3
change: update .9, edit .8, modify .8, set .5, patch .5
chat: conversation .8, message .6
check: get .5, verify .7, validate .7, status .4
close: update .4, end .5
collaborator: member .5
colleague: member .8, user .7
comment: note .5, reply .4
company: organization .7, account .4, business .5
contact: person .6, customer .5
content: file .5, blob .3
contents: content 1
copy: clone .8, duplicate .8, fork .5
count: total .6, number .5, list .2
create: add .7, new .6, post .4, make .5, register .4, insert .6, open .4
credential: token .6, secret .6, key .6
delete: remove .9, destroy .7, cancel .4
deploy: deployment .9
deposit: payin .5, topup .5
directory: folder .9, tree .5
discount: coupon .8, promotion .6
disable: deactivate .8, lock .4, remove .3, delete .3
display: get .6, show .8
document: file .7
download: export .6, get .5, archive .3
earnings: balance .6, revenue .7
edit: update .9, modify .8, change .6
email: mail .9, message .3
employee: cardholder .4, member .6, user .5, person .5
enable: activate .8, set .4, put .3, create .3
end: close .6, stop .6, complete .6
erase: delete .9
error: failure .7, exception .6
event: activity .5
export: download .7, archive .4
fetch: get .9, retrieve .9
file: content .5, asset .3, attachment .6, blob .3, upload .3
find: search .9, get .5, list .4
folder: directory .8, collection .4
friend: user .6, follower .6
fund: money .4, amount .3
funds: transfer .3, payout .3
get: retrieve .9, read .6, show .5, return .5, list .3, fetch .7
give: add .6, create .4, assign .6
group: team .7, organization .3
hide: minimize .7, archive .4
history: event .5, log .5, transaction .4, activity .4
hook: webhook .9
image: picture .8, photo .8
invite: invitation .9, add .6
invoice: bill .5
join: add .5, accept .5
kick: remove .8
know: get .7
label: tag .6
latest: recent .7, last .6
launch: start .8, create .5, run .6
leave: remove .5, post .3, create .3
link: url .6, connect .4, attach .4
list: get .5, return .4, all .2
log: logs .9, event .4
login: authenticate .8, auth .8, session .5
look: get .6, search .5
mail: email .9, message .5
make: create .9, add .5, generate .6
manually: dispatch .6
mark: set .5, update .4
meeting: event .8, calendar .4
member: user .5, membership .8
merge: combine .5
message: post .4, chat .4, sms .5
money: balance .7, amount .4, fund .5, payment .4
movie: video .6
music: track .6, song .6
name: rename .5, title .4
new: create .8, add .5
next: upcoming .9, following .3
note: comment .7
notify: notification .8
open: create .7, new .4
order: purchase .6
organisation: organization 1
owner: user .3, account .3
page: session .4, link .3, site .4
pay: payment .9, charge .5
payment: charge .5, intent .3
people: user .7, member .8, person .9, collaborator .3
permission: access .7, role .6, right .6, scope .4
person: user .7, member .7, people .9
phone: number .5, call .4, sms .4
photo: image .8, picture .9
picture: image .8, photo .8, avatar .5
plan: price .5, subscription .3, item .2
portal: billing .3
post: create .7, send .5, publish .6, message .5
price: plan .4, cost .7
problem: issue .8, error .5
product: item .4
protect: protection .9, rule .3
publish: create .8, release .5
put: set .6, add .5, upload .5
quota: limit .8, rate .4
read: get .9, retrieve .8, list .4, view .6, show .6
recent: latest .6, last .5
recently: event .2, latest .5
record: entry .6, log .4
refund: reverse .5, return .2
register: create .9, add .6
reject: decline .8, refuse .8, dismiss .5
remaining: left .5, limit .3
remove: delete .95, detach .6, unassign .5
rename: update .7, name .4, title .3
reply: comment .6, respond .7
repo: repository 1
repository: repo .9
resend: send .6, redeliver .8
rerun: run .7, retry .8
restart: reboot .8, rerun .6
retry: rerun .8
review: approve .3
reviewer: review .7
role: permission .5
room: channel .8
run: dispatch .7, execute .8, start .6, trigger .7, job .3
save: store .8, create .5, add .5
saved: method .2, source .2
secret: credential .4, variable .2
see: get .7, list .6, view .8
send: create .5, post .5, deliver .7, message .4
set: update .7, create .7, put .6, replace .5, add .3
share: collaborator .4, permission .5, invite .4, add .3
show: get .9, list .7, retrieve .9, view .8
sign: authenticate .5, session .4
song: track .9
spam: abuse .6
staff: member .7, user .5
star: stargazer .8, stargazers .8
starred: stargazer .9, star .9
start: create .8, run .6, begin .8
stop: cancel .8, disable .6, end .6, pause .5
submit: update .6, create .7, post .5, send .6
subscribe: subscription .8, follow .6, watch .6
tag: label .6, ref .3
task: issue .4, item .4, todo .7, job .4
text: sms .7, message .6
ticket: issue .7, conversation .5, case .5
todo: task .8
track: watch .5
transfer: move .7, send .4
trash: delete .8, bin .6
trigger: dispatch .8, run .7, create .4
undo: revert .9, restore .7, reverse .6
unpaid: open .4, outstanding .6, overdue .5
update: edit .8, modify .8, change .7, set .6, patch .5
upload: create .6, add .5, put .4, attach .3
url: link .6
usage: consumption .5, billing .5, metric .4
user: member .5, account .4, person .4
version: release .6, tag .3
video: movie .5
view: get .9, list .6, show .7
visitor: view .6, traffic .7, visit .8
void: cancel .5
wait: pending .5
watch: subscription .6, subscribe .7
website: page .7, site .9
who: list .4, user .3
wipe: delete .9
worker: runner .7
write: create .8, update .5, send .4, put .4
"""


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case; `createIssue` and `create-issue` are two words each."""
    return [word.lower() for word in _WORD.findall(_APOSTROPHE.sub(" ", text))]


def stems(text: str) -> list[str]:
    """Return the stems of a text's words, without stop words."""
    return [stem(word) for word in split_words(text) if word not in STOP_WORDS]


@lru_cache(maxsize=20_000)
def stem(word: str) -> str:
    """Return a word without its ending: `invoices`, `invoicing` and `invoice` have one stem."""
    if word.endswith("ss") or len(word) <= _SHORTEST_STEM:
        return word
    for ending, put in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST_STEM:
            word = word[: len(word) - len(ending)] + put
            break
    # `cancelled`, `running`: the consonant that was doubled before the ending becomes a single one.
    if len(word) > _SHORTEST_STEM and word[-1] == word[-2] and word[-1] not in "aeiouls":
        return word[:-1]
    return word[:-1] if word.endswith("ll") else word


def _read_synonyms(table: str) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for line in table.strip().splitlines():
        word, _, others = line.partition(":")
        weights = found.setdefault(stem(word.strip()), {})
        for other in others.split(","):
            name, weight = other.split()
            if stem(name) != stem(word):
                weights[stem(name)] = max(float(weight), weights.get(stem(name), 0.0))
    return found


SYNONYMS: dict[str, dict[str, float]] = _read_synonyms(_SYNONYMS)
"""Synonyms in one direction: `{stem of a query's word: {stem of a description's word: weight}}`."""

VERBS: dict[str, str] = {stem(word): intent for intent, listed in _VERBS.items() for word in listed.split()}
"""The intent of a verb, by its stem: `read`, `create`, `update`, `delete`, or `write` (create or update)."""

SCOPES: frozenset[str] = frozenset(stem(word) for word in _SCOPES.split())
"""Stems of words such as `legacy` or `public`, which restrict the subject of an operation."""
