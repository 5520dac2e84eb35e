"""The API's own description: the OpenAPI document, and a page that shows it without a script from elsewhere."""

from __future__ import annotations

import inspect
from typing import Any

import msgspec
from litestar import MediaType, Request, Response, get

from clutch.wire.access import Needs

CONTENT_POLICY = "default-src 'none'; connect-src 'self'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Clutch API</title>
<style>
 body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #222 }
 h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin: 2rem 0 .4rem; text-transform: capitalize }
 details { border: 1px solid #ddd; border-radius: 6px; margin: .35rem 0; padding: .3rem .7rem }
 summary { cursor: pointer } summary code { font-weight: 600 }
 .verb { display: inline-block; width: 4.2rem; font: 600 .8rem ui-monospace, monospace; color: #0a58ca }
 .verb.POST, .verb.PUT { color: #146c43 } .verb.DELETE { color: #b02a37 }
 .needs { float: right; color: #777; font-size: .8rem }
 pre { background: #f6f6f6; padding: .6rem; overflow: auto; border-radius: 4px; font-size: .82rem }
 table { border-collapse: collapse; font-size: .88rem } td, th { text-align: left; padding: .15rem .9rem .15rem 0 }
 input { font: inherit; padding: .3rem .5rem; width: 20rem }
 @media (prefers-color-scheme: dark) { body { background: #16181c; color: #ddd } pre { background: #202329 }
   details { border-color: #333 } .verb { color: #6ea8fe } }
</style>
</head>
<body>
<h1>Clutch API</h1>
<p>The document itself: <a href="/openapi.json">/openapi.json</a>. Every request carries
<code>Authorization: Bearer TOKEN</code>; every error is an <code>ErrorView</code>.</p>
<p><input id="find" placeholder="find a path or a word" autofocus></p>
<div id="routes">loading ...</div>
<h2>Shapes</h2><div id="shapes"></div>
<script>
const make = (tag, text, cls) => {
  const e = document.createElement(tag); if (text) e.textContent = text; if (cls) e.className = cls; return e;
};
const named = (s) => !s ? '' : s.$ref ? s.$ref.split('/').pop() : s.oneOf ? s.oneOf.map(named).join(' | ')
  : s.type === 'array' ? `[${named(s.items) || 'any'}]` : s.type || 'any';
const table = (heads, rows) => {
  const t = make('table'), h = make('tr'); heads.forEach(x => h.append(make('th', x))); t.append(h);
  rows.forEach(r => { const tr = make('tr'); r.forEach(x => tr.append(make('td', x))); t.append(tr); }); return t;
};
fetch('/openapi.json').then(r => r.json()).then(doc => {
  const groups = {};
  for (const [path, verbs] of Object.entries(doc.paths)) for (const [verb, op] of Object.entries(verbs)) {
    const d = make('details'), s = make('summary');
    s.append(make('span', verb.toUpperCase(), 'verb ' + verb.toUpperCase()), make('code', path),
             make('span', '  ' + (op.summary || '')), make('span', op['x-needs'] || '', 'needs'));
    d.append(s); if (op.description) d.append(make('p', op.description));
    if (op.parameters) d.append(table(['parameter', 'in', 'type', ''], op.parameters.map(p =>
      [p.name + (p.required ? ' *' : ''), p.in, named(p.schema), p.description || ''])));
    if (op.requestBody) for (const [t, c] of Object.entries(op.requestBody.content))
      d.append(make('p', `body: ${t} ${named(c.schema)}`));
    d.append(table(['status', 'answer', ''], Object.entries(op.responses).map(([code, r]) =>
      [code, r.content ? Object.values(r.content).map(c => named(c.schema)).join(', ') : '', r.description || ''])));
    d.dataset.text = `${verb} ${path} ${op.summary || ''}`.toLowerCase();
    (groups[(op.tags || ['other'])[0]] ||= []).push(d);
  }
  const routes = document.getElementById('routes'); routes.textContent = '';
  for (const tag of Object.keys(groups).sort()) { routes.append(make('h2', tag)); routes.append(...groups[tag]); }
  const shapes = document.getElementById('shapes');
  for (const [name, s] of Object.entries((doc.components || {}).schemas || {})) {
    const d = make('details'); d.append(make('summary', name));
    if (s.description) d.append(make('p', s.description));
    d.append(make('pre', JSON.stringify(s, null, 1))); shapes.append(d);
  }
  document.getElementById('find').addEventListener('input', e => {
    const want = e.target.value.toLowerCase();
    for (const d of routes.querySelectorAll('details')) d.hidden = !d.dataset.text.includes(want);
  });
}).catch(e => { document.getElementById('routes').textContent = 'could not be read: ' + e; });
</script>
</body>
</html>
"""


@get("/docs", media_type=MediaType.HTML, include_in_schema=False, opt={"needs": Needs.PUBLIC})
async def get_docs() -> Response[str]:
    """A page for people."""
    headers = {"Content-Security-Policy": CONTENT_POLICY, "Cache-Control": "max-age=300"}
    return Response(PAGE, media_type=MediaType.HTML, headers=headers)


@get("/openapi.json", include_in_schema=False, opt={"needs": Needs.PUBLIC})
async def get_openapi(request: Request[Any, Any, Any]) -> Response[bytes]:
    """The document for programs."""
    body = msgspec.json.encode(described(request.app))
    return Response(body, media_type="application/json", headers={"Cache-Control": "max-age=300"})


def described(app: Any) -> dict[str, Any]:
    """The OpenAPI document of an app, with what each operation needs of its caller."""
    document: dict[str, Any] = app.openapi_schema.to_schema()
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            for method in handler.http_methods:
                found = document["paths"].get(route.path_format, {}).get(method.lower())
                if found is not None:
                    summary, _, rest = inspect.cleandoc(handler.fn.__doc__ or "").partition("\n\n")
                    found |= {"summary": " ".join(summary.split()), "description": rest}
                    found["x-needs"] = str(handler.opt.get("needs", ""))
    return document


ROUTES: list[Any] = [get_docs, get_openapi]
