# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_zerowire_global_optspecs
    string join \n log= log-format= h/help V/version
end

function __fish_zerowire_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_zerowire_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_zerowire_using_subcommand
    set -l cmd (__fish_zerowire_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c zerowire -n "__fish_zerowire_needs_command" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_needs_command" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_needs_command" -s h -l help -d 'Print help'
complete -c zerowire -n "__fish_zerowire_needs_command" -s V -l version -d 'Print version'
complete -c zerowire -n "__fish_zerowire_needs_command" -f -a "net" -d 'A virtio-net device for a VM, served over vhost-user: the guest\'s frames to a tap or an interface, and back'
complete -c zerowire -n "__fish_zerowire_needs_command" -f -a "vsock" -d 'A virtio-vsock device for a VM, served over vhost-user: streams and messages between guests, and between a guest and the host\'s programs by unix sockets'
complete -c zerowire -n "__fish_zerowire_needs_command" -f -a "ctl" -d 'Manage a running \'zerowire net\' or \'zerowire vsock\' with --control PATH: add, change, remove and drain VMs, read statistics'
complete -c zerowire -n "__fish_zerowire_needs_command" -f -a "top" -d 'What the VMs of a running \'zerowire net\' or \'zerowire vsock\' with --control PATH move, as a live view: rates, the share that is not copied, and why the rest is'
complete -c zerowire -n "__fish_zerowire_needs_command" -f -a "send" -d 'A file or standard input to any receiver, lent to the kernel where that costs less CPU'
complete -c zerowire -n "__fish_zerowire_needs_command" -f -a "recv" -d 'TCP connections of any senders, received in place: by a NIC\'s queue without a copy, by io_uring or by plain calls'
complete -c zerowire -n "__fish_zerowire_needs_command" -f -a "doctor" -d 'What this kernel, user and network namespace can do for each path, and how to get the missing part'
complete -c zerowire -n "__fish_zerowire_needs_command" -f -a "replay" -d 'Send the frames of a capture (pcap, pcapng) on an interface, at the recorded or another speed'
complete -c zerowire -n "__fish_zerowire_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l socket -l socket-path -d 'Unix socket to listen on for the front end (QEMU: -chardev socket,path=PATH). A socket left behind by a process that is gone is replaced' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l fd -d 'Inherited descriptor to use in place of --socket: a listening unix socket, or a connected one; with a connected one the program ends with the connection' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l socket-owner -d 'User who owns the front end\'s socket, and may connect: a name of /etc/passwd or a number (libvirt\'s QEMU: libvirt-qemu or qemu). Default: the user of this process' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l socket-group -d 'Group whose users may connect as a front end: a name of /etc/group or a number' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l socket-mode -d 'Permissions of the front end\'s socket, in octal; to connect takes the right to write. Default: 0600, and 0660 with --socket-group' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l port -d 'Where frames go, in this process\'s network namespace: tap:NAME, xdp:IF or packet:IF, with options; see \'Ports\' below. Default: tap:zerowire0' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l name -d 'Name of the VM in logs and statistics. Default: vm0' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l vm -d 'One of several VMs: name=NAME,socket=PATH,port=PORT with PORT as for --port. Behind commas it takes metadata=FILE, metadata-token=WHEN, mac=MAC, guard=CHECKS, tx-limit=LIMIT, rx-limit=LIMIT, socket-owner=USER, socket-group=GROUP and socket-mode=MODE. Repeat for more, up to 256. In a LIMIT \'+\' stands in place of commas' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l config -d 'TOML file with the VMs: [[vm]] name = …, [vm.net] socket = …, port = …, metadata = …, metadata-token = …, mac = …, guard = …, tx-limit = …, rx-limit = …, socket-owner = …, socket-group = …, socket-mode = …. VMs without [vm.net] are skipped. SIGHUP reads it again and changes what differs' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l mac -d 'The device\'s MAC address, for front ends that ask the back end for the device\'s configuration (GET_CONFIG): they get the address, the MTU and the number of queue pairs. Not for QEMU and libvirt: they have an option of their own, and warn of a back end with this one' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l guard -d 'What the guest may send, as CHECK+CHECK+…: mac, mac=MAC, vlan=off, vlan=NUMBER, ip=ADDRESS+ADDRESS…, arp, nd, and storm=RATE toward the guest; see \'Guard\' below' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l tx-limit -d 'What the guest may send in a second: BYTES/s, BITSbit/s, ops=FRAMES/s, or both, such as 100M/s,ops=10k/s; K, M, G and T are powers of 1000. burst=BYTES is the size of the token bucket (default: what comes in 100 ms), once=BYTES a burst beside it at the start; ops-burst=FRAMES and ops-once=FRAMES are the same for frames. What is beyond the limit waits in the guest\'s ring; nothing is dropped' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l rx-limit -d 'What the guest may receive in a second, in the form of --tx-limit. What is beyond the limit waits in the port\'s queue; the kernel drops what that has no room for' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l metadata -d 'JSON file (up to 1 MiB) to serve at http://169.254.169.254/ and http://[fd00:ec2::254]/ inside the guest; SIGHUP reads it again. It holds for VMs that name none' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l metadata-token -d 'Whether metadata requests need a session token. It holds for VMs that say nothing of it' -r -f -a "required\t'A request without a token is answered 401'
optional\t'A request without a token is answered; one with a wrong token is not'"
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l memlock -d 'Bytes (256M, 4G, …) of guests\' memory that xdp ports may pin in all. A VM on an xdp port needs all of its memory and 2.6 MB for each queue pair; its rings don\'t start where that exceeds what is left, and the log names the figure. Default: what RLIMIT_MEMLOCK allows, and without limit with CAP_IPC_LOCK' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l path -d 'Whether frames are copied in user space' -r -f -a "auto\t'Scatter lists where they pay, copies where those pay'
copy\t'Copy every frame: the control of measurements'"
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l gather-max -d 'Frames up to this many bytes are gathered into one buffer; 0 scatters all but very short pieces. The default was measured, see measurements/net.md' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l rx-copybreak -d 'Received frames up to this many bytes, virtio-net header included, are copied where nothing but such frames comes; 0 reads all of them straight into the guest\'s buffers. Taps, and packet ports that receive from the socket. The default was chosen by \'zerowire-bench net --direction rx --with "--rx-copybreak 0"\'' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l pcap -d 'Capture what all VMs send and receive, as pcapng, which Wireshark and tcpdump read. FILE is made, or emptied if it exists; \'-\' is standard output, and statistics go to standard error then. VMs never wait for the capture: it counts what it lacks' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l pcap-snaplen -d 'Bytes to capture of each frame or packet, 1 to 262144: 128 hold the headers' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l pcap-rotate -d 'Begin with another FILE before it has more than SIZE bytes (1M or more): it becomes FILE.1, what was FILE.1 becomes FILE.2, and so on. The oldest one beyond FILES in all (2 to 1000) goes' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l pcap-vm -d 'Capture the VM of this name, and no others; repeat for more' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l pcap-filter -d 'Capture what passes this filter: a part of what pcap-filter(7) has, such as \'port 443 and not inbound\'. docs/capture.md has the words of each device' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l control -d 'Unix socket for \'zerowire ctl\', curl and other clients of its HTTP API: they add, change, remove and drain VMs and read statistics. With it a server may start without VMs' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l control-owner -d 'User who owns the control socket, and may manage: a name of /etc/passwd or a number. Root and the user of this process may in any case' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l control-group -d 'Group whose users may manage: a name of /etc/group or a number' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l control-mode -d 'Permissions of the control socket, in octal. Default: 0600, and 0660 with --control-group' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l metrics -d 'Serve GET /metrics to Prometheus on this TCP address, to everybody who reaches it: HOST, PORT or HOST:PORT with a numeric host. Default: 127.0.0.1:9465' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l pcap-dir -d 'Let those who may manage begin captures (\'zerowire ctl capture start\'), into files of this folder' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l sandbox -d 'Serve each VM by a process of its own, without rights, files and network: a front end that takes it over harms its own VM alone. See docs/sandbox.md' -r -f -a "on\t'Processes of their own, which have what is open for them and nothing else'
off\t'Threads of this process'
auto\t'As with on. Where that can\'t serve what was asked for, a warning says why, and it is as with off'"
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l user -d 'User whom these processes belong to if this one is root: a name of /etc/passwd or a number. Default: 65534 (nobody). Not with --sandbox off' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l postcopy -d 'Offer post-copy migration (PAGEFAULT), of one VM on a tap or packet port with one queue pair. Its front end gets a userfaultfd of this process, with which it can stop this process and write into its memory: for front ends that are trusted as much as this process'
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l json -d 'Print statistics as one line of JSON, on SIGUSR1 and at the end; without it as a table'
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -l print-capabilities -d 'Print what this back end can do, as QEMU\'s docs/interop/vhost-user.json describes, and exit'
complete -c zerowire -n "__fish_zerowire_using_subcommand net" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l socket -l socket-path -d 'Unix socket to listen on for the front end (QEMU: -chardev socket,path=PATH). A socket left behind by a process that is gone is replaced' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l fd -d 'Inherited descriptor to use in place of --socket: a listening unix socket, or a connected one; with a connected one the program ends with the connection' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l socket-owner -d 'User who owns the front end\'s socket, and may connect: a name of /etc/passwd or a number (libvirt\'s QEMU: libvirt-qemu or qemu). Default: the user of this process' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l socket-group -d 'Group whose users may connect as a front end: a name of /etc/group or a number' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l socket-mode -d 'Permissions of the front end\'s socket, in octal; to connect takes the right to write. Default: 0600, and 0660 with --socket-group' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l cid -d 'The guest\'s address (CID), 3 to 4294967294; no two VMs of a process share one' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l uds -l uds-path -d 'The host\'s end. Host programs connect to PATH (streams) or PATH.seqpacket (messages), write \'CONNECT PORT\' and a newline, and read \'OK HOSTPORT\'. Programs that map their receive buffers connect to PATH.map. A guest that connects to CID 2 port P arrives at the unix socket PATH_P, where a host program listens (SOCK_STREAM, or SOCK_SEQPACKET for messages)' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l uds-owner -d 'User who owns the host end\'s sockets (PATH, PATH.seqpacket, PATH.map), and may connect: a name of /etc/passwd or a number. Default: the user of this process' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l uds-group -d 'Group whose programs may connect to the host end: a name of /etc/group or a number' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l uds-mode -d 'Permissions of the host end\'s sockets, in octal; to connect takes the right to write. Default: 0600, and 0660 with --uds-group' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l groups -d 'Groups of the VM, with + between them. VMs of one process that share a group reach each other by CID. Default: the group \'default\'' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l name -d 'Name of the VM in logs and statistics. Default: vm0' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l vm -d 'One of several VMs: name=NAME,cid=N,socket=PATH,uds=PATH. Behind commas it takes groups=A+B, tx-limit=LIMIT, rx-limit=LIMIT, socket-owner=USER, socket-group=GROUP, socket-mode=MODE, uds-owner=USER, uds-group=GROUP and uds-mode=MODE. Repeat for more, up to 256. In a LIMIT \'+\' stands in place of commas' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l config -d 'TOML file with the VMs: [[vm]] name = …, [vm.vsock] socket = …, cid = …, uds = …, groups = ["A", "B"], tx-limit = …, rx-limit = …, socket-owner = …, uds-owner = … and so on. VMs without [vm.vsock] are skipped. SIGHUP reads it again and changes what differs' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l buffer -d 'Credit a connection: bytes that a guest may send before the other side has taken them, and the most that is held for a slow one; 4096 to 16777216. With less than 196608 a host program\'s socket keeps 192 KiB unread all the same. See \'Memory\' below' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l max-connections -d 'Connections of a VM at once, 1 to 65536; further ones are reset. Each one to a host program takes a descriptor, and each one memory: see below' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l peer-connections -d 'Of these, the ones that one other guest of the process may have with the VM\'s, 0 to --max-connections; further ones are reset. A quarter of them, and 2 at least, if not given' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l sibling-connections -d 'Of these, the ones that all other guests together may have, 0 to --max-connections; the rest are for host programs and for the guest\'s own with them. Seven eighths if not given' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l request-rate -d 'Connection requests of a VM\'s guest to the host a second, and at once, up to 1000000; further ones are reset without a look, so that a guest that asks all the time leaves its own connections their rate. 0: no bound' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l tx-limit -d 'What the guest may send in a second: BYTES/s, BITSbit/s, ops=PACKETS/s, or both, such as 100M/s,ops=10k/s; K, M, G and T are powers of 1000. burst=BYTES is the size of the token bucket (default: what comes in 100 ms), once=BYTES a burst beside it at the start; ops-burst=PACKETS and ops-once=PACKETS are the same for packets. What is beyond the limit waits in the guest\'s ring; nothing is dropped' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l rx-limit -d 'What the guest may receive from host programs in a second, in the form of --tx-limit. What is beyond the limit waits in the programs\' sockets' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l map-allow -d 'User, beside root and the one that runs this, whose programs may connect to the guest with mapped receive buffers, at PATH.map. They need the right to write that socket as well (--uds-group GROUP); repeat for more' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l map-listen -d 'User whose programs may take the guest\'s connections to ports of the host, at PATH.map as well: those to the ports named, as in 1000:5000-5009+7000, or to all. A program that listens at PATH_P comes first. Repeat for more' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l map-max -d 'Bytes that a mapped connection may have at most, windows and their headers; 65536 to 4294967296' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l map-connections -d 'Mapped connections of a VM at once, 0 to --max-connections; further ones are refused. Each takes two mappings and three descriptors of this process. If not given, all VMs together get half of each: a quarter of vm.max_map_count or a sixth of the open files, whichever is less, divided by the number of VMs, and 8 at least' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l map-total -d 'Bytes that all mapped connections of a VM may have together, windows and their headers; 65536 to 1099511627776' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l map-hold -d 'With --share-guest-memory: milliseconds for which a program may hold what lies in the guest\'s memory before further payload is copied for it, until it has given everything back; 1 to 60000' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l pcap -d 'Capture what all VMs send and receive, as pcapng, which Wireshark and tcpdump read. FILE is made, or emptied if it exists; \'-\' is standard output, and statistics go to standard error then. VMs never wait for the capture: it counts what it lacks' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l pcap-snaplen -d 'Bytes to capture of each frame or packet, 1 to 262144: 128 hold the headers' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l pcap-rotate -d 'Begin with another FILE before it has more than SIZE bytes (1M or more): it becomes FILE.1, what was FILE.1 becomes FILE.2, and so on. The oldest one beyond FILES in all (2 to 1000) goes' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l pcap-vm -d 'Capture the VM of this name, and no others; repeat for more' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l pcap-filter -d 'Capture what passes this filter: a part of what pcap-filter(7) has, such as \'port 443 and not inbound\'. docs/capture.md has the words of each device' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l control -d 'Unix socket for \'zerowire ctl\', curl and other clients of its HTTP API: they add, change, remove and drain VMs and read statistics. With it a server may start without VMs' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l control-owner -d 'User who owns the control socket, and may manage: a name of /etc/passwd or a number. Root and the user of this process may in any case' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l control-group -d 'Group whose users may manage: a name of /etc/group or a number' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l control-mode -d 'Permissions of the control socket, in octal. Default: 0600, and 0660 with --control-group' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l metrics -d 'Serve GET /metrics to Prometheus on this TCP address, to everybody who reaches it: HOST, PORT or HOST:PORT with a numeric host. Default: 127.0.0.1:9465' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l pcap-dir -d 'Let those who may manage begin captures (\'zerowire ctl capture start\'), into files of this folder' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l sandbox -d 'Serve VMs by processes without rights, files and network, one for those that may reach each other (--groups): a front end or a guest that takes one over harms no other VM. See docs/sandbox.md' -r -f -a "on\t'Processes of their own, which have what is open for them and nothing else'
off\t'Threads of this process'
auto\t'As with on. Where that can\'t serve what was asked for, a warning says why, and it is as with off'"
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l user -d 'User whom these processes belong to if this one is root: a name of /etc/passwd or a number. Default: 65534 (nobody). Not with --sandbox off' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l share-guest-memory -d 'Let programs that map receive buffers read the guest\'s whole memory, so that payload needs no copy at all. They can read whatever else the guest keeps there, keys included, and one that means harm can open that memory anew and write to it: only for programs that are trusted as the VMM is'
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l json -d 'Print statistics as one line of JSON, on SIGUSR1 and at the end; without it as a table'
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -l print-capabilities -d 'Print what this back end can do, as QEMU\'s docs/interop/vhost-user.json describes, and exit'
complete -c zerowire -n "__fish_zerowire_using_subcommand vsock" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -l control -d 'Control socket of the server' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -l json -d 'Print the server\'s JSON in place of words'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -s h -l help -d 'Print help'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -f -a "version" -d 'The version of the server'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -f -a "list" -d 'All VMs'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -f -a "show" -d 'One VM with its statistics'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -f -a "add" -d 'Add a VM'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -f -a "change" -d 'Give a VM other limits, another guard, or other metadata, which its guest sees at once; with --reconnect also another port, other groups and all else'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -f -a "remove" -d 'Remove a VM: its front end is disconnected'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -f -a "drain" -d 'Take no further front end for a VM, and remove it when the present one has left'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -f -a "capture" -d 'The capture of what VMs send and receive'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -f -a "stats" -d 'Statistics'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -f -a "metrics" -d 'Statistics as Prometheus reads them'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and not __fish_seen_subcommand_from version list show add change remove drain capture stats metrics help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from version" -l control -d 'Control socket of the server' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from version" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from version" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from version" -l json -d 'Print the server\'s JSON in place of words'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from version" -s h -l help -d 'Print help'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from list" -l control -d 'Control socket of the server' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from list" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from list" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from list" -l json -d 'Print the server\'s JSON in place of words'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from list" -s h -l help -d 'Print help'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from show" -l control -d 'Control socket of the server' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from show" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from show" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from show" -l json -d 'Print the server\'s JSON in place of words'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from show" -s h -l help -d 'Print help'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l metadata -d 'JSON file to serve inside the guest. If the VM has it already, it is read again' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l metadata-token -d 'Whether metadata requests need a session token: required or optional' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l mac -d 'The device\'s address, for front ends that ask the back end for it' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l guard -d 'What the guest may send, as for \'zerowire net --guard\'; \'off\' for all frames' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l groups -d 'Groups of the VM, with + between them' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l uds-owner -d 'User who owns the host end\'s sockets' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l uds-group -d 'Group whose programs may connect to the host end' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l uds-mode -d 'Permissions of the host end\'s sockets, in octal' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l tx-limit -d 'What the guest may send in a second, as for \'zerowire net --tx-limit\'; \'off\' for no limit' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l rx-limit -d 'What the guest may receive in a second; \'off\' for no limit' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l socket-owner -d 'User who owns the front end\'s socket' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l socket-group -d 'Group whose users may connect as a front end' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l socket-mode -d 'Permissions of the front end\'s socket, in octal' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l socket -d 'Unix socket to listen on for the front end' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l port -d 'Where frames go, as for \'zerowire net --port\'' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l cid -d 'The guest\'s address, of a server of \'zerowire vsock --control PATH\'' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l uds -d 'The host\'s end, as for \'zerowire vsock --uds\'' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l control -d 'Control socket of the server' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -l json -d 'Print the server\'s JSON in place of words'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from add" -s h -l help -d 'Print help'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l socket -d 'Unix socket to listen on for the front end' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l port -d 'Where frames go, as for \'zerowire net --port\'' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l metadata -d 'JSON file to serve inside the guest. If the VM has it already, it is read again' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l metadata-token -d 'Whether metadata requests need a session token: required or optional' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l mac -d 'The device\'s address, for front ends that ask the back end for it' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l guard -d 'What the guest may send, as for \'zerowire net --guard\'; \'off\' for all frames' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l cid -d 'The guest\'s address, of a server of \'zerowire vsock --control PATH\'' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l uds -d 'The host\'s end, as for \'zerowire vsock --uds\'' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l groups -d 'Groups of the VM, with + between them' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l uds-owner -d 'User who owns the host end\'s sockets' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l uds-group -d 'Group whose programs may connect to the host end' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l uds-mode -d 'Permissions of the host end\'s sockets, in octal' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l tx-limit -d 'What the guest may send in a second, as for \'zerowire net --tx-limit\'; \'off\' for no limit' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l rx-limit -d 'What the guest may receive in a second; \'off\' for no limit' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l socket-owner -d 'User who owns the front end\'s socket' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l socket-group -d 'Group whose users may connect as a front end' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l socket-mode -d 'Permissions of the front end\'s socket, in octal' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l control -d 'Control socket of the server' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l reconnect -d 'Disconnect the front end if that takes another device, such as one with another port. It has to connect again by itself (QEMU: reconnect=1). Without this such a change is refused'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -l json -d 'Print the server\'s JSON in place of words'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from change" -s h -l help -d 'Print help'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from remove" -l control -d 'Control socket of the server' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from remove" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from remove" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from remove" -l json -d 'Print the server\'s JSON in place of words'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from remove" -s h -l help -d 'Print help'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from drain" -l control -d 'Control socket of the server' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from drain" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from drain" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from drain" -l json -d 'Print the server\'s JSON in place of words'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from drain" -s h -l help -d 'Print help'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from capture" -l control -d 'Control socket of the server' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from capture" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from capture" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from capture" -l json -d 'Print the server\'s JSON in place of words'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from capture" -s h -l help -d 'Print help'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from capture" -f -a "start" -d 'Begin with one, of which there is one at a time'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from capture" -f -a "show" -d 'The file that is written'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from capture" -f -a "stop" -d 'End it'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from capture" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from stats" -l control -d 'Control socket of the server' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from stats" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from stats" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from stats" -l follow -d 'Once a second, until interrupted'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from stats" -l json -d 'Print the server\'s JSON in place of words'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from stats" -s h -l help -d 'Print help'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from metrics" -l control -d 'Control socket of the server' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from metrics" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from metrics" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from metrics" -l json -d 'Print the server\'s JSON in place of words'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from metrics" -s h -l help -d 'Print help'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "version" -d 'The version of the server'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "list" -d 'All VMs'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "show" -d 'One VM with its statistics'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "add" -d 'Add a VM'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "change" -d 'Give a VM other limits, another guard, or other metadata, which its guest sees at once; with --reconnect also another port, other groups and all else'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "remove" -d 'Remove a VM: its front end is disconnected'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "drain" -d 'Take no further front end for a VM, and remove it when the present one has left'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "capture" -d 'The capture of what VMs send and receive'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "stats" -d 'Statistics'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "metrics" -d 'Statistics as Prometheus reads them'
complete -c zerowire -n "__fish_zerowire_using_subcommand ctl; and __fish_seen_subcommand_from help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c zerowire -n "__fish_zerowire_using_subcommand top" -l control -d 'Control socket of the server' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand top" -l interval -d 'Seconds between two samples, 0.1 to 3600' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand top" -l sort -d 'Sort VMs by name, transmit, receive, dropped or zero-copied' -r -f -a "name\t'By name'
transmit\t'Most bytes from the guest first'
receive\t'Most bytes to the guest first'
dropped\t'Most dropped frames first'
zero-copied\t'The smallest share of bytes that were not copied first'"
complete -c zerowire -n "__fish_zerowire_using_subcommand top" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand top" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand top" -l once -d 'Print one table of the rates in one interval, and end. Without a terminal as standard input and output this is what it does in any case'
complete -c zerowire -n "__fish_zerowire_using_subcommand top" -l json -d 'Print one line of JSON after each interval, until interrupted; with --once, one line'
complete -c zerowire -n "__fish_zerowire_using_subcommand top" -s h -l help -d 'Print help'
complete -c zerowire -n "__fish_zerowire_using_subcommand send" -l to -d 'The peer: HOST:PORT, [IPV6]:PORT, vsock:CID:PORT, or unix:PATH' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand send" -l mode -d 'Whether memory is copied or lent' -r -f -a "copy\t'The kernel copies'
zerocopy\t'Lend always; where a limit forbids it, fail and name it'
auto\t'Measure, and take what costs less CPU'"
complete -c zerowire -n "__fish_zerowire_using_subcommand send" -l backend -d 'Which system calls send' -r -f -a "auto\t'io_uring where memory can be registered (standard input), plain socket calls otherwise'
socket\t'send, sendmsg, sendmmsg, with MSG_ZEROCOPY'
uring\t'SEND_ZC and SENDMSG_ZC; an error where io_uring is not allowed'"
complete -c zerowire -n "__fish_zerowire_using_subcommand send" -l chunk -d 'Bytes of a stream in one call, 1 to 4194304. Default: 262144; 65536 to vsock:, where the kernel copies what is longer than the peer\'s credit' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand send" -l datagram -d 'Payload of a datagram with --udp, 1 to 65507. Default: 1400, or what the path takes in one packet if that is less. Several go in one call and the kernel or the NIC cuts them (UDP_SEGMENT), unless there is room for only one, or they are longer than the path takes in one packet: those go one by one, as fragments' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand send" -l timeout -d 'Give up when the peer takes nothing for this time, or doesn\'t answer a new connection for it; without it, when the kernel does. Input that is slow to come is waited for' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand send" -l json -d 'The result as JSON to a file, in place of the summary; - is standard output. Progress is on standard error' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand send" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand send" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand send" -l udp -d 'Datagrams instead of a stream (with HOST:PORT and unix:PATH)'
complete -c zerowire -n "__fish_zerowire_using_subcommand send" -s q -l quiet -d 'No progress and no summary, only errors'
complete -c zerowire -n "__fish_zerowire_using_subcommand send" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -s p -l port -d 'TCP port to listen at; 0: any free one, which is printed' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -s i -l interface -d 'Network interface whose queue receives; with -q' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -s q -l queue -d 'Receive queue of the interface' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -s r -l receive -d 'Ends after this many megabytes (of 1000000 bytes), of all connections together' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -s c -l connections -d 'Takes N connections, and ends when all have ended; 0: ends by -r, --timeout or a signal' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -l mode -d 'Which way receives' -r -f -a "auto\t'With -i and -q: queue. Else multishot, or plain where io_uring is refused'
plain\t'epoll and recvmsg: every kernel and container'
multishot\t'io_uring multishot receive into provided buffers; an error where io_uring is refused'
nodev\t'io_uring zero-copy receive without a device: the kernel copies into the area (Linux 7.1, CAP_NET_ADMIN)'
queue\t'io_uring zero-copy receive: the NIC places payload in the area; needs -i and -q'"
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -l bind -d 'Address or name to listen at; :: is all addresses, IPv6 and IPv4' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -l to -d 'Writes what comes to a file, straight from the area; - is standard output. Of more than one connection each gets a file of its own: FILE.1, FILE.2, in the order in which they were accepted' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -l timeout -d 'Ends with an error when nothing has come for this time' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -l buffer -d 'Length of a buffer' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -l buffers -d 'Number of buffers' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -l rx-buf-len -d 'Length of the buffers of a NIC\'s queue: a power of two from a page on (Linux 7.0, some drivers; with --huge)' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -l json -d 'The result as JSON to a file; - is standard output, in place of the summary' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -l huge -d 'The area lies in huge pages of 2 MiB'
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -l configure -d 'Turns header split of the interface on, and RSS off the queue, and sets both back at the end (CAP_NET_ADMIN). The command that steers the port\'s flows to the queue is printed'
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -l quiet -d 'No progress and no summary, only errors, and what --configure changed'
complete -c zerowire -n "__fish_zerowire_using_subcommand recv" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zerowire -n "__fish_zerowire_using_subcommand doctor" -l path -d 'Only the checks of one path' -r -f -a "net\t'Frames between a VM and the network'
send\t'Programs that send'
recv\t'Programs that receive'
vsock\t'Streams and messages of VMs, with each other and with programs'
all\t'Everything'"
complete -c zerowire -n "__fish_zerowire_using_subcommand doctor" -s i -l interface -d 'Only what zero-copy receive needs of this network interface: its driver, header split, RSS, steering, queues' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand doctor" -s q -l queue -d 'Go through the checks for this receive queue, one by one; without it, all queues in short' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand doctor" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand doctor" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand doctor" -l configure -d 'Turn header split on, and RSS off this queue, look, and set both back when a signal comes'
complete -c zerowire -n "__fish_zerowire_using_subcommand doctor" -l json -d 'Print the report as JSON, one document'
complete -c zerowire -n "__fish_zerowire_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -s i -l interface -l intf1 -d 'Interface to send on, which must be up and of the Ethernet kind' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -s l -l loop -d 'Passes through the capture; 0 goes on until a signal, --limit or --duration. A pass begins right after the last frame of the one before' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -s L -l limit -d 'Frames to send in all' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l duration -d 'Seconds to send for' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -s x -l speed -l multiplier -d 'Send X times as fast as recorded' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -s p -l pps -d 'Send N frames a second' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -s M -l mbps -d 'Send X times 10⁶ bits a second, counted from the Ethernet header to the end of the payload' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l port -d 'How frames go out: packet is a ring shared with the kernel (PACKET_TX_RING), send a packet socket whose frames the kernel copies, xdp is AF_XDP; auto takes the ring, and the socket where rings are refused' -r -f -a "auto\t'A packet ring, and where rings are refused a packet socket'
packet\t'A packet ring (PACKET_TX_RING): no copy in the socket'
xdp\t'AF_XDP'
send\t'A packet socket: the kernel copies each frame'"
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l queue -d 'Queue of the interface, for --port xdp: 0 unless given' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l oversized -d 'Packets longer than the interface takes (MTU and 14 bytes, with a VLAN tag 4 more): refuse the capture; leave them out; let TCP be cut into segments by the kernel or the interface, and refuse others (gso) or leave others out (gso-skip)' -r -f -a "fail\t'Refuse the capture'
skip\t'Leave it out'
gso\t'Let TCP be cut into segments on its way out, and refuse the capture if another one is too long'
gso-skip\t'Let TCP be cut into segments on its way out, and leave others out'"
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l mss -d 'Bytes of payload of each segment; by default what the MTU leaves. Needs --oversized gso or gso-skip' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l truncated -d 'Packets that were captured in part (snap length): refuse the capture, leave them out, or send the part' -r -f -a "fail\t'Refuse the capture'
skip\t'Leave it out'
send\t'Send what was captured'"
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l short -d 'Packets of less than the 14 bytes of an Ethernet header, empty ones among them: refuse the capture, or leave them out' -r -f -a "fail\t'Refuse the capture'
skip\t'Leave it out'"
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l backwards -d 'Packets whose time is before that of their predecessor: refuse the capture, or send them right after it. Matters for the recorded speed and --speed only' -r -f -a "fail\t'Refuse the capture'
send\t'Send it right after its predecessor'"
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l max-gap -d 'Shorten longer recorded pauses to this time. For the recorded speed and --speed only' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l max-memory -d 'Memory for the capture: K, M and G stand for powers of 1024. A capture that needs more is read while it is sent' -r
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l json -d 'Write the summary as JSON to FILE, or in place of the text to standard output (-)' -r -F
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l log-format -d 'How the log is written: text, json (an object a line) or journal (each line behind its priority). Default: journal if standard error goes to systemd\'s journal, else text' -r -f -a "text\t'A level and a text'
json\t'A JSON object a line, with `time`, `level`, `vm`, `message` and the event\'s fields'
journal\t'A text behind its priority, as systemd reads it (sd-daemon(3))'"
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -s t -l topspeed -d 'Send as fast as the port takes frames'
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l bypass-queue -d 'Go straight to the driver, past the interface\'s queue and its traffic control; packet and send only'
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l pad -d 'Fill up packets that were captured in part to their original length, with zeroes'
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -l ignore-truncated -d 'Send what is whole of a capture that ends inside a packet'
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -s K -l preload -l preload-pcap -d 'Taken for tcpreplay\'s sake: a capture that fits is always loaded before it is sent'
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -s q -l quiet -d 'Print errors only'
complete -c zerowire -n "__fish_zerowire_using_subcommand replay" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and not __fish_seen_subcommand_from net vsock ctl top send recv doctor replay help" -f -a "net" -d 'A virtio-net device for a VM, served over vhost-user: the guest\'s frames to a tap or an interface, and back'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and not __fish_seen_subcommand_from net vsock ctl top send recv doctor replay help" -f -a "vsock" -d 'A virtio-vsock device for a VM, served over vhost-user: streams and messages between guests, and between a guest and the host\'s programs by unix sockets'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and not __fish_seen_subcommand_from net vsock ctl top send recv doctor replay help" -f -a "ctl" -d 'Manage a running \'zerowire net\' or \'zerowire vsock\' with --control PATH: add, change, remove and drain VMs, read statistics'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and not __fish_seen_subcommand_from net vsock ctl top send recv doctor replay help" -f -a "top" -d 'What the VMs of a running \'zerowire net\' or \'zerowire vsock\' with --control PATH move, as a live view: rates, the share that is not copied, and why the rest is'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and not __fish_seen_subcommand_from net vsock ctl top send recv doctor replay help" -f -a "send" -d 'A file or standard input to any receiver, lent to the kernel where that costs less CPU'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and not __fish_seen_subcommand_from net vsock ctl top send recv doctor replay help" -f -a "recv" -d 'TCP connections of any senders, received in place: by a NIC\'s queue without a copy, by io_uring or by plain calls'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and not __fish_seen_subcommand_from net vsock ctl top send recv doctor replay help" -f -a "doctor" -d 'What this kernel, user and network namespace can do for each path, and how to get the missing part'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and not __fish_seen_subcommand_from net vsock ctl top send recv doctor replay help" -f -a "replay" -d 'Send the frames of a capture (pcap, pcapng) on an interface, at the recorded or another speed'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and not __fish_seen_subcommand_from net vsock ctl top send recv doctor replay help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "version" -d 'The version of the server'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "list" -d 'All VMs'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "show" -d 'One VM with its statistics'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "add" -d 'Add a VM'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "change" -d 'Give a VM other limits, another guard, or other metadata, which its guest sees at once; with --reconnect also another port, other groups and all else'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "remove" -d 'Remove a VM: its front end is disconnected'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "drain" -d 'Take no further front end for a VM, and remove it when the present one has left'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "capture" -d 'The capture of what VMs send and receive'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "stats" -d 'Statistics'
complete -c zerowire -n "__fish_zerowire_using_subcommand help; and __fish_seen_subcommand_from ctl" -f -a "metrics" -d 'Statistics as Prometheus reads them'
