#!/bin/busybox sh
# The first process of a guest with a stock Debian: it loads the modules, mounts the root, and gives
# way to systemd there. A unit of it takes the commands of the serial line.
broken() {
    printf '\ninit: %s\n' "$*"
    /bin/busybox poweroff -f
}
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev || broken "no /proc, /sys or /dev"
while read -r module; do insmod "/modules/$module.ko"; done </modules/order
while read -r module; do insmod "/more/$module.ko"; done </more/order
mkdir /new
mount -t ext4 -o noatime,noinit_itable /dev/vda /new || broken "no root on /dev/vda"
# With one it is not the first boot, at which systemd asks questions.
echo 7a65726f776972650000000000000001 >/new/etc/machine-id
cp /files/* /new/usr/local/bin/
cp /serial.service /new/etc/systemd/system/
mkdir -p /new/etc/systemd/system/multi-user.target.wants
ln -s ../serial.service /new/etc/systemd/system/multi-user.target.wants/
# What no test needs takes half of the CPU time in which systemd starts. The generators, which have
# nothing to generate here, take most of that in which it reads its units anew.
for unit in serial-getty@ttyS0.service getty@tty1.service apparmor.service e2scrub_reap.service modprobe@.service \
    systemd-logind.service systemd-modules-load.service systemd-random-seed.service systemd-udev-trigger.service \
    systemd-update-utmp.service systemd-update-utmp-runlevel.service timers.target
do
    ln -sf /dev/null /new/etc/systemd/system/$unit
done
rm /new/lib/systemd/system-generators/*
# It starts perl for each package that is installed, which asks nothing here.
rm /new/etc/apt/apt.conf.d/70debconf
umount /proc
umount /sys
mount --move /dev /new/dev
exec switch_root /new /lib/systemd/systemd
