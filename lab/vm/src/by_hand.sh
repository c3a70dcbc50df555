#!/bin/busybox sh
# The first process of a guest that is started by hand: it loads the modules, then runs a shell on
# the console. The end of the shell turns the machine off.
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin HOME=/root TERM=linux PS1='guest# '
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t devpts pts /dev/pts
mount -t tmpfs tmp /tmp
while read -r module; do insmod "/modules/$module.ko"; done </modules/order
ip link set lo up
hostname guest
cd /root
printf '\nLinux %s, with busybox, curl and iperf3. `exit` turns it off.\n' "$(uname -r)"
setsid cttyhack sh
poweroff -f
