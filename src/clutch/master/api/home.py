"""The page behind the address that ``clutch up`` prints: who is logged in, the nodes, the tasks, as they change.

The one-time token stands behind the ``#`` of the address, so that no server and no log sees it; the page exchanges it
for a session, which it keeps in its own memory only. A page that some task serves could read anything else of ours.
"""

from __future__ import annotations

from typing import Any

from litestar import MediaType, Response, get

from clutch.wire.access import Needs

POLICY = "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Clutch</title>
<style>
 body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }
 h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin: 1.6rem 0 .3rem }
 table { border-collapse: collapse; width: 100% }
 th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #8883; white-space: nowrap }
 th { font-weight: 600; color: #777; font-size: .85rem }
 .failed, .lost { color: #b02a37 } .running, .ready { color: #146c43 } .dim { color: #777 }
 @media (prefers-color-scheme: dark) { body { background: #16181c; color: #ddd } }
</style>
</head>
<body>
<h1>Clutch</h1>
<p id="said" class="dim">logging in ...</p>
<div id="shown"></div>
<p class="dim">The command line can do more: <code>clutch --help</code>. The API: <a href="/docs">/docs</a>.</p>
<script>
'use strict';
const said = document.getElementById('said'), shown = document.getElementById('shown');
let token = '';
const make = (tag, text, cls) => {
  const e = document.createElement(tag); e.textContent = text ?? ''; if (cls) e.className = cls; return e;
};
const ask = async (path, options = {}) => {
  const headers = { 'Content-Type': 'application/json', ...(token && { Authorization: 'Bearer ' + token }) };
  const answer = await fetch('/api/v1' + path, { ...options, headers });
  const body = await answer.json();
  if (!answer.ok) throw new Error(`${body.object}: ${body.cause}. ${body.next_step}`);
  return body;
};
const table = (title, heads, rows) => {
  const box = make('div'), t = make('table'), h = make('tr');
  heads.forEach(x => h.append(make('th', x))); t.append(h);
  rows.forEach(cells => {
    const tr = make('tr'); cells.forEach(x => tr.append(make('td', x, /^[a-z]+$/.test(x) ? x : ''))); t.append(tr);
  });
  box.append(make('h2', title), rows.length ? t : make('p', 'none', 'dim')); return box;
};
const age = (at) => { const s = Math.max(0, Date.now() / 1000 - at);
  return s < 90 ? `${s.toFixed(0)} s` : s < 5400 ? `${(s / 60).toFixed(0)} min` : `${(s / 3600).toFixed(1)} h`; };
const look = async () => {
  try {
    const [nodes, tasks] = await Promise.all([ask('/nodes?limit=200'), ask('/tasks?limit=50')]);
    shown.replaceChildren(
      table('Nodes', ['node', 'state', 'pool', 'slots held'],
        nodes.items.map(n => [n.key, n.state, n.pool, `${n.slots_held} of ${n.slots}`])),
      table('Tasks', ['task', 'name', 'state', 'owner', 'pool', 'slots', 'age', 'detail'],
        tasks.items.map(t => [t.key, t.name, t.reason || t.state, t.owner, t.pool, String(t.slots),
          age(t.submitted_at), t.detail])));
    said.textContent = said.dataset.who;
  } catch (error) { said.textContent = String(error.message || error); }
  setTimeout(look, 2000);
};
(async () => {
  const given = new URLSearchParams(location.hash.slice(1)).get('token');
  history.replaceState(null, '', location.pathname);
  if (!given) { said.textContent = "Open the address that 'clutch up' prints: it lets you in once."; return; }
  try {
    const made = await ask('/login', { method: 'POST', body: JSON.stringify({ one_time_token: given }) });
    token = made.token;
    said.dataset.who = 'logged in as ' + (await ask('/me')).name;
    look();
  } catch (error) { said.textContent = String(error.message || error); }
})();
</script>
</body>
</html>
"""


@get("/", media_type=MediaType.HTML, include_in_schema=False, opt={"needs": Needs.PUBLIC})
async def show_home() -> Response[str]:
    """A page with what runs."""
    headers = {"Content-Security-Policy": POLICY, "Referrer-Policy": "no-referrer", "X-Frame-Options": "DENY"}
    return Response(PAGE, media_type=MediaType.HTML, headers=headers)


ROUTES: list[Any] = [show_home]
