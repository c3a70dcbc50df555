#!/bin/busybox sh
# The guest's first process: loads the modules, then runs the commands that come
# over the serial line. A command is a line "NUMBER COMMAND"; after its output the
# line "@@END NUMBER STATUS" follows.
broken() {
    printf '\ninit: %s\n' "$*"
    /bin/busybox poweroff -f
}
# It says so and goes on where there is no room for all.
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin HOME=/root
[ -x /bin/zcat ] && [ -e /modules/order ] || broken "the root file system is not whole: it needs more memory than half of what the guest has"
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev || broken "no /proc, /sys or /dev"
mkdir -p /dev/shm /dev/pts
mount -t devpts pts /dev/pts && mount -t tmpfs tmp /tmp || broken "no /dev/pts or /tmp"
while read -r module; do insmod "/modules/$module.ko"; done </modules/order
ip link set lo up
stty -F /dev/ttyS0 -echo raw
printf '\n@@READY %s\n' "$(uname -r)"
# Not in this process, to which orphans go: the end of one would interrupt `read`,
# which then loses what it has read of a line.
(
    while read -r number command; do
        (eval "$command") </dev/null 2>&1
        printf '\n@@END %s %s\n' "$number" "$?"
    done
)
poweroff -f
