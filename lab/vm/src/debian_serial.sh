#!/bin/sh
# Runs the commands that come over the serial line: a line is "NUMBER COMMAND", and after its output
# the line "@@END NUMBER STATUS" follows.
exec </dev/ttyS0 >/dev/ttyS0 2>&1
stty -F /dev/ttyS0 -echo raw
# Until then units are being started.
systemctl is-system-running --wait >/dev/null
printf '\n@@READY %s\n' "$(uname -r)"
while read -r number command; do
    (eval "$command") </dev/null 2>&1
    printf '\n@@END %s %s\n' "$number" "$?"
done
