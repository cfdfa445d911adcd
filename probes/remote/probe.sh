# A probe that needs only sh, cat, tr, grep, sed, od and fold. It says what exec
# delivered to this shell (E) and what its children would get (L). What it could
# not look at it does not call absent.
t=TOKEN
n='NAMES'
lacks=
for tool in cat tr grep sed od fold; do
  command -v "$tool" >/dev/null 2>&1 || lacks="$lacks $tool"
done
# Bytes, not characters: grep would take a value that is no UTF-8 for a binary file.
pick() {
  LC_ALL=C tr '\000\n' '\n\001' | LC_ALL=C grep -E "^($n)=" | LC_ALL=C sed "s/^/$1=/" |
    LC_ALL=C tr '\n\001' '\000\n'
}
say() {
  printf 'role=probe\000no-latched=the probe for sh does not call NCCL\000'
  if [ -r "/proc/$$/environ" ]; then printf 'has-exec=1\000'; pick exec <"/proc/$$/environ"
  else printf 'no-exec=/proc/PID/environ is not readable there\000'; fi
  if [ -r /proc/self/environ ]; then printf 'has-live=1\000'; cat /proc/self/environ | pick live
  else printf 'no-live=/proc/PID/environ is not readable there\000'; fi
}
if [ -n "$lacks" ]; then
  echo "nccldiag: the probe for sh finds no$lacks there" >&2
  exit 1
fi
s="sh$$x$(od -An -N4 -tx1 /dev/urandom 2>/dev/null | tr -d ' \n')"
i=0
{ say | od -An -v -tx1 | tr -d ' \n' | fold -w 384; echo; } | {
  while read -r line; do
    echo "@nccldiag:$t:$s:$i:0:$line@"
    i=$((i + 1))
  done
  echo "@nccldiag:$t:$s:$i:1:@"
}
