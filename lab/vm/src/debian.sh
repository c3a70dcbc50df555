#!/bin/busybox sh
# The first process of a guest with a stock Debian: it loads the modules, unpacks the root into
# memory, and gives way to systemd there. A unit of it takes the commands of the serial line.
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
mount -t tmpfs -o size=80%,mode=755 root /new || broken "no memory for the root"
tar -xf /root.tar -C /new || broken "the root was not unpacked"
rm /root.tar
# With one it is not the first boot, at which systemd asks questions.
echo 7a65726f776972650000000000000001 >/new/etc/machine-id
cp /files/* /new/usr/local/bin/
cp /serial.service /new/etc/systemd/system/
mkdir -p /new/etc/systemd/system/multi-user.target.wants
ln -s ../serial.service /new/etc/systemd/system/multi-user.target.wants/
ln -s /dev/null /new/etc/systemd/system/serial-getty@ttyS0.service
umount /proc
umount /sys
mount --move /dev /new/dev
exec switch_root /new /lib/systemd/systemd
