"""What is done on a host, as small POSIX shell scripts. Everything they need comes as arguments, secrets as input.

A host has one folder of ours for each cluster::

    FOLDER/current        the machine that this host is: name and pool, made with O_EXCL, so that two cannot be
    FOLDER/MACHINE/data   the agent's folder
    FOLDER/MACHINE/token  the enrolment token, 0600
    FOLDER/ended/MACHINE  it was terminated: nobody may launch it again

Whether an agent runs is read from the process table, by the folder it was told. They need GNU grep and find and procps.
"""

from __future__ import annotations

_AGENTS = r"""
agents() {
    for found in $(grep -lzxF -- "$1" /proc/[0-9]*/cmdline 2>/dev/null || true); do
        if grep -qzxF -- --data "$found" 2>/dev/null; then
            found="${found#/proc/}"
            echo "${found%/cmdline}"
        fi
    done
}
"""

_FOLDER = r"""
set -eu
umask 077
case "$1" in /*) folder="$1" ;; *) folder="$HOME/$1" ;; esac
"""

_MACHINE = r"""
machine="$2"
shift 2
place="$folder/$machine"
data="$place/data"
"""

LAUNCH = (
    _FOLDER
    + _MACHINE
    + _AGENTS
    + r"""
pool="$1"
shift
mkdir -p "$folder/ended"
if [ -e "$folder/ended/$machine" ]; then echo ended; exit 0; fi
if ! (set -C; printf '%s\n%s\n' "$machine" "$pool" > "$folder/current") 2>/dev/null; then
    if [ "$(sed -n 1p "$folder/current")" != "$machine" ]; then echo taken; exit 0; fi
fi
mkdir -p "$place"
cat > "$place/token.$$"
mv "$place/token.$$" "$place/token"
pid="$(agents "$data")"
if [ -z "$pid" ]; then
    cd /
    setsid nohup "$@" --token-file "$place/token" --data "$data" < /dev/null >> "$place/agent.log" 2>&1 &
    started=$!
    tries=0
    while [ ! -e "$data/lock" ] && [ "$tries" -lt 200 ]; do
        if ! kill -0 "$started" 2>/dev/null; then
            echo "failed $(tail -n 1 "$place/agent.log" | cut -c 1-300)"
            exit 0
        fi
        tries=$((tries + 1))
        sleep 0.05
    done
fi
echo running
"""
)
"""Says ``running``, ``taken`` (the host is another machine), ``ended``, ``failed WHY``. Its input is the token."""

TERMINATE = (
    _FOLDER
    + _MACHINE
    + _AGENTS
    + r"""
tries="$1"
mkdir -p "$folder/ended"
: > "$folder/ended/$machine"
cd /
users() {
    roots="$(agents "$data") $(find /proc/[0-9]*/cwd /proc/[0-9]*/fd -maxdepth 1 -lname "$place/*" 2>/dev/null \
        | cut -d / -f 3 | sort -u | grep -vx "$$" || true)"
    ps -eo pid=,ppid=,stat= | awk -v roots="$(echo $roots)" '
        BEGIN { n = split(roots, root, " "); for (i = 1; i <= n; i++) want[root[i]] = 1 }
        $3 !~ /^Z/ { parent[$1] = $2 }
        END {
            do {
                grew = 0
                for (p in parent) if (!(p in want) && (parent[p] in want)) { want[p] = 1; grew = 1 }
            } while (grew)
            for (p in want) if (p in parent) print p
        }'
}
for pid in $(agents "$data"); do kill -TERM "$pid" 2>/dev/null || true; done
while [ -n "$(agents "$data")" ] && [ "$tries" -gt 0 ]; do tries=$((tries - 1)); sleep 0.1; done
tries=50
while left="$(users)"; [ -n "$left" ]; do
    if [ "$tries" -le 0 ]; then echo "left $(echo $left)"; exit 0; fi
    for pid in $left; do kill -KILL "$pid" 2>/dev/null || true; done
    tries=$((tries - 1))
    sleep 0.1
done
rm -rf "$place"
if [ -e "$folder/current" ] && [ "$(sed -n 1p "$folder/current")" = "$machine" ]; then rm -f "$folder/current"; fi
echo gone
"""
)
"""Says ``gone``, or ``left PIDS``: processes that cannot be killed."""

LIST = (
    _FOLDER
    + _AGENTS
    + r"""
if [ ! -e "$folder/current" ]; then echo free; exit 0; fi
machine="$(sed -n 1p "$folder/current")"
pool="$(sed -n 2p "$folder/current")"
if [ -n "$(agents "$folder/$machine/data")" ]; then echo "running $machine $pool"; else echo "dead $machine $pool"; fi
"""
)
"""Says ``free``, ``running MACHINE POOL`` or ``dead MACHINE POOL``."""
