# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_zerowire_bench_global_optspecs
    string join \n log= h/help V/version
end

function __fish_zerowire_bench_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_zerowire_bench_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_zerowire_bench_using_subcommand
    set -l cmd (__fish_zerowire_bench_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c zerowire-bench -n "__fish_zerowire_bench_needs_command" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire-bench -n "__fish_zerowire_bench_needs_command" -s h -l help -d 'Print help'
complete -c zerowire-bench -n "__fish_zerowire_bench_needs_command" -s V -l version -d 'Print version'
complete -c zerowire-bench -n "__fish_zerowire_bench_needs_command" -f -a "net" -d 'The net device against a bare loop of write() or read() on the same tap, or its AF_XDP and packet ports against bare loops over a veth pair, in a network namespace of its own'
complete -c zerowire-bench -n "__fish_zerowire_bench_needs_command" -f -a "vsock" -d 'The vsock device against the same bytes through a pair of unix sockets, in the same write lengths'
complete -c zerowire-bench -n "__fish_zerowire_bench_needs_command" -f -a "vsock-rx" -d 'How fast a program receives by vsock: by copying, in mapped windows, sleeping and polling; in a guest as well'
complete -c zerowire-bench -n "__fish_zerowire_bench_needs_command" -f -a "packet-tx" -d 'Sending to a network device, copying and lending: packet sockets, rings, AF_XDP, UDP with MSG_ZEROCOPY and io_uring'
complete -c zerowire-bench -n "__fish_zerowire_bench_needs_command" -f -a "tcp-rx" -d 'Receiving TCP: select and read as iperf does, epoll, io_uring, and the library\'s ways, on 1 to 256 connections'
complete -c zerowire-bench -n "__fish_zerowire_bench_needs_command" -f -a "peers" -d 'zerowire beside other programs that do the same work: dpdk-testpmd, passt, vhost-device-vsock, tcpreplay, iperf3'
complete -c zerowire-bench -n "__fish_zerowire_bench_needs_command" -f -a "ab" -d 'Two builds of this program in turns: what a change of the library costs'
complete -c zerowire-bench -n "__fish_zerowire_bench_needs_command" -f -a "render" -d 'Write the tables and charts of the measurement pages from their JSON'
complete -c zerowire-bench -n "__fish_zerowire_bench_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l port -d 'tap, or xdp, packet or both: the tap\'s port stands beside them' -r -f -a "tap\t'`tap:IF`, which the back end makes itself'
xdp\t'`xdp:IF`'
packet\t'`packet:IF`'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l rounds -d 'Rounds of each case: 25, of other ports than a tap 15, and 5 with --quick; three times as many, shorter ones of frames beyond 9014 bytes' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l sizes -d 'Frame lengths, bytes from the Ethernet header on, 60 to 65549; above 9014 they are TCP frames to be segmented [default: 64,1500,9000,60000; over a veth pair 64,1500]' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l direction -d 'tx (guest to tap), rx, or both' -r -f -a "tx\t'Guest to host: written to the tap'
rx\t'Host to guest: read from the tap'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l working-set -d 'hot, cold or both' -r -f -a "hot\t'256 KiB: within a second-level cache'
cold\t'64 MiB: beyond the usual third-level cache'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l vms -d 'Numbers of VMs in the scaling table, each 1 to 64; 0 leaves the table out [default: 1 to 12]. Taps only' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l idle-vms -d 'VMs of the process that is watched while they do nothing, 1 to 256 [default: 12]. Taps only' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l fragment-len -d 'Bytes of the pieces in which the guest sends large frames [default: 32768]. Taps only' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l program -d 'Measure these programs in turns in place of the one beside this: --program before=PATH --program after=PATH. Each is set beside the first (/before). Options behind PATH go to that program alone: \'on=PATH --sandbox on\'. Without --path copy, many VMs and idle ones' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l gate -d 'With --program: end with status 1 if a further program takes more than PERCENT more CPU time than the first one in a case. The lower quartile of the ratios (/before) counts' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l with -d 'A further variant of the back end, as arguments of \'zerowire net\': --with \'--gather-max 0\'. Repeat for more' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l without -d 'A further variant whose guest leaves out a feature: --without IN_ORDER. Repeat for more. Taps only' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l json -d 'Write the result as JSON; - is standard output, in place of the text' -r -F
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l svg -d 'Write charts (SVG) into this folder' -r -F
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l quick -d 'Fewer rounds; of the numbers of VMs only the first, the middle and the last'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l bare-calls -d 'Measure also a bare loop of the copies and system calls that the device makes for a frame, and set the device beside it. Taps only'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -l floor-only -d 'Measure the floor alone, or with --bare-calls both bare loops'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand net" -s h -l help -d 'Print help'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l rounds -d 'Rounds of each case [default: 9, with --quick 3]' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l type -d 'Sockets of the guest and of the host\'s program: stream, or seqpacket, where each write is a message' -r -f -a "stream\t'SOCK_STREAM: bytes without bounds'
seqpacket\t'SOCK_SEQPACKET: each write is a message, each read takes one'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l writes -d 'Bytes of each write, up to 4194304, or of each message, up to the credit and to what a unix socket takes [default: 4096,16384,65536,131072,262144,524288; with --type seqpacket 64,1024,4096,16384,65536]' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l direction -d 'tx (guest to host), rx, or both' -r -f -a "tx\t'Guest to host: written to the tap'
rx\t'Host to guest: read from the tap'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l credit -d 'Credit of a connection, for the back end (--buffer) and for the guest' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l working-set -d 'hot, cold or both' -r -f -a "hot\t'256 KiB: within a second-level cache'
cold\t'64 MiB: beyond the usual third-level cache'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l rx-buffer -d 'Bytes of the guest\'s receive buffers, header included, 128 to 65536' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l host-cpu -d 'CPU of the host\'s program: backend (the back end\'s), guest (the guest\'s), or any' -r -f -a "guest\t'The guest\'s: what the back end wakes is on another CPU, and pushes the guest aside'
backend\t'The back end\'s: they take turns. The floor is at its lowest here, and steady'
any\t'Any: the scheduler chooses, for the floor as well'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l idle -d 'Numbers of idle connections whose memory is measured, each up to 8192; 0 leaves the part out' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l program -d 'Measure these programs in turns in place of the one beside this: --program before=PATH --program after=PATH. Each is set beside the first (/before). Options behind PATH go to that program alone: \'on=PATH --sandbox on\'. Only streams, or messages, of one connection' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l gate -d 'With --program: end with status 1 if a further program takes more than PERCENT more CPU time than the first one in a case. The lower quartile of the ratios (/before) counts' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l with -d 'A further variant of the back end, as arguments of \'zerowire vsock\'. Repeat for more' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l json -d 'Write the result as JSON; - is standard output, in place of the text' -r -F
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l svg -d 'Write charts (SVG) into this folder' -r -F
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l quick -d 'Fewer rounds, fewer lengths'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l no-sleeping-guest -d 'Leave out the guest that sleeps until an interrupt'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l no-extras -d 'Leave out round trips, guest to guest, many connections, and attacks'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -l floor-only -d 'Measure the floor alone'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock" -s h -l help -d 'Print help'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -s c -l cid -d 'Client: the server\'s CID. On the host that of the guest behind --uds, in a guest 2 for the host' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -s b -l pages -d 'Pages (4096 bytes) of the client\'s buffer or of a window, or of the server\'s buffer [default: 1; server: 4096]' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -s r -l rcvlowat -d 'Client: bytes that make a dequeue worth while (SO_RCVLOWAT)' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -s z -l mode -d 'Client: n (copy), y (mapped; sleeps), u (mapped; polls), d (as y, payload stays in the guest\'s memory)' -r -f -a "n\t'Calls that copy into a buffer of the program; it sleeps in poll()'
y\t'Windows that the program has mapped; it sleeps until one is published'
u\t'The same; it looks at the window\'s flag in a loop'
d\t'The same as [`ReceiveMode::Mapped`], with payload left in the guest\'s memory'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -s p -l port -d 'The server\'s port' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l uds -d 'On the host: the host\'s end of \'zerowire vsock\' (its --uds)' -r -F
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l device -d 'In a guest, for -z y and u: the PCI address of a vsock device that no kernel driver has [default: the only one]' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l rounds -d 'Table: rounds of each case [default: 5, with --quick 3]' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -s m -l megabytes -d 'Megabytes (2^20 bytes) that the server sends, or each run of the table [default: 2048, table with --quick: 64]' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l sizes -d 'Table: bytes of a dequeue, multiples of 4096 up to 4194304' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l direction -d 'Table: tx (guest to host), rx, or both' -r -f -a "tx\t'Guest to host: written to the tap'
rx\t'Host to guest: read from the tap'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l working-set -d 'Table: hot, cold or both' -r -f -a "hot\t'256 KiB: within a second-level cache'
cold\t'64 MiB: beyond the usual third-level cache'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l modes -d 'Table: modes, as letters of -z' -r -f -a "n\t'Calls that copy into a buffer of the program; it sleeps in poll()'
y\t'Windows that the program has mapped; it sleeps until one is published'
u\t'The same; it looks at the window\'s flag in a loop'
d\t'The same as [`ReceiveMode::Mapped`], with payload left in the guest\'s memory'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -s v -l credit -d 'Client, table: credit of the connection, the bytes that the server may send ahead [default: the other side\'s; table: 262144]' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l windows -d 'Client, table: windows in the ring, 2 to 64 [default: as many as have 1 MiB, at least 4]' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l host-cpu -d 'Table: CPU of the host\'s program: backend (the back end\'s; a polling one gets the guest\'s), guest (the guest\'s), or any' -r -f -a "guest\t'The guest\'s: what the back end wakes is on another CPU, and pushes the guest aside'
backend\t'The back end\'s: they take turns. The floor is at its lowest here, and steady'
any\t'Any: the scheduler chooses, for the floor as well'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l json -d 'Write the result as JSON; - is standard output, in place of the text' -r -F
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l svg -d 'Write charts (SVG) into this folder' -r -F
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -s s -l server -d 'Server'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l table -d 'Run the whole experiment and print tables'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l copy-out -d 'Client: copy what was dequeued once more before looking at it (a negative control)'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l check -d 'Sum the bytes up and print the sum; the figures include it. The table compares the bytes before its rounds by itself'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l quick -d 'Table: fewer rounds, sizes and bytes'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -l floor-only -d 'Table: measure the floors alone'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand vsock-rx" -s h -l help -d 'Print help'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand packet-tx" -l rounds -d 'Rounds of each row [default: 9, with --quick 3]' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand packet-tx" -l sizes -d 'Payload lengths, 1 to 65000 bytes. Frames longer than an MTU of 1500 carry a virtio-net header, to be cut' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand packet-tx" -l sink -d 'ifb, veth or both' -r -f -a "ifb\t'ifb: true zero copy, every frame is dropped'
veth\t'veth to a UDP socket: the negative control, the kernel copies lent pages for a receiver on this machine'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand packet-tx" -l working-set -d 'hot, cold or both' -r -f -a "hot\t'256 KiB: within a second-level cache'
cold\t'64 MiB: beyond the usual third-level cache'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand packet-tx" -l columns -d 'Which columns' -r -f -a "send\t'packet socket, send(), copying'
sendmmsg\t'packet socket, sendmmsg(), copying'
ring\t'PACKET_TX_RING, payload resident in the ring, headers built in place'
ring-copied\t'PACKET_TX_RING, each frame copied into the ring'
xdp\t'AF_XDP in copy mode, frames resident in its memory'
udp\t'UDP, send(), copying'
zc\t'UDP, MSG_ZEROCOPY, each notification awaited (published: zc)'
zc-batched\t'UDP, MSG_ZEROCOPY, notifications read a batch at a time (published: recvmmsg)'
send-zc\t'UDP, io_uring SEND_ZC, a batch at a time'
send-zc-fixed\t'UDP, io_uring SEND_ZC from registered memory'
auto\t'UDP, the library chooses by measurement'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand packet-tx" -l auto-sends -d 'Sends of each side when auto is compared with copying and lending; 0 leaves that out [default: 100000, with --quick 20000]' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand packet-tx" -l json -d 'Write the result as JSON; - is standard output, in place of the text' -r -F
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand packet-tx" -l svg -d 'Write charts (SVG) into this folder' -r -F
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand packet-tx" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand packet-tx" -l quick -d 'Fewer rounds, a quarter of the sends'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand packet-tx" -l floor-only -d 'Measure the bare system calls alone'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand packet-tx" -l cycles -d 'Find the share of CPU time in copy routines, with perf'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand packet-tx" -l replay -d 'Compare \'zerowire replay\' with tcpreplay, 64 and 1400 bytes a frame'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand packet-tx" -s h -l help -d 'Print help'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -l rounds -d 'Rounds of each case [default: 9; with --quick or --client external 3]' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -l megabytes -d 'Megabytes (of 1000000 bytes) of a run, of all connections together [default: 512, with --quick 64]' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -l connections -d 'Numbers of connections, 1 to 480 each' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -l ways -d 'Which ways [default: all, queue only with -i and -q]' -r -f -a "recv\t'recv() in a loop, one connection: the floor'
select\t'select() and read(): what iperf does'
epoll\t'epoll_wait() and read()'
uring-read\t'io_uring, a READ a connection'
plain\t'library: epoll and recvmsg into leased buffers'
multishot\t'library: io_uring multishot receive into leased buffers'
nodev\t'library: io_uring zero-copy interface in copy mode (ZCRX_REG_NODEV)'
queue\t'library: io_uring zero-copy receive, placed by the NIC'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -l read -d 'Bytes of a read() or recv() of the ways without the library (iperf3 takes 131072)' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -s i -l interface -d 'Network interface of the way queue; with -q' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -s q -l queue -d 'Its receive queue' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -l client -d 'Where the bytes come from' -r -f -a "own\t'A thread of this process, over the loopback interface of a namespace of its own'
external\t'iperf3 clients that send TCP here, one test after the other'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -s p -l port -d 'With --client external: TCP port to listen at [default: 5201]' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -l bind -d 'With --client external: address to listen at' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -l json -d 'Write the result as JSON; - is standard output, in place of the text' -r -F
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -l svg -d 'Write charts (SVG) into this folder' -r -F
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -l quick -d 'Fewer rounds, an eighth of the bytes'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -l touch -d 'Look at every byte, as a program that uses the data does'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand tcp-rx" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand peers" -l rounds -d 'Rounds of each row [default: 15, with --quick 3]' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand peers" -l parts -d 'Which parts: net, udp, vsock, replay, tcp' -r -f -a "net\t'The net device on a tap'
udp\t'The same device, and the host\'s IP behind the tap'
vsock\t'The vsock device'
replay\t'Sending a capture'
tcp\t'Sending and receiving TCP'"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand peers" -l peer -d 'Another file than the one in PATH for dpdk-testpmd, passt, vhost-device-vsock, tcpreplay or iperf3. Repeat for more' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand peers" -l json -d 'Write the result as JSON; - is standard output, in place of the text' -r -F
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand peers" -l svg -d 'Write charts (SVG) into this folder' -r -F
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand peers" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand peers" -l quick -d 'Fewer rounds, less in each, hot working sets only'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand peers" -s h -l help -d 'Print help'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand ab" -l rounds -d 'How often both run' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand ab" -l gate -d 'End with status 1 if NEW takes more than PERCENT more CPU time than OLD in a line. The lower quartile of the ratios counts' -r
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand ab" -l json -d 'Write the result as JSON; - is standard output, in place of the text' -r -F
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand ab" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand ab" -s h -l help -d 'Print help'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand render" -l log -d 'What to log to standard error: error, warn, info, debug or trace' -r -f -a "error\t''
warn\t''
info\t''
debug\t''
trace\t''"
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand render" -l check -d 'Write nothing; end with status 1 if a page or a chart is not as its JSON has it'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand render" -s h -l help -d 'Print help'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand help; and not __fish_seen_subcommand_from net vsock vsock-rx packet-tx tcp-rx peers ab render help" -f -a "net" -d 'The net device against a bare loop of write() or read() on the same tap, or its AF_XDP and packet ports against bare loops over a veth pair, in a network namespace of its own'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand help; and not __fish_seen_subcommand_from net vsock vsock-rx packet-tx tcp-rx peers ab render help" -f -a "vsock" -d 'The vsock device against the same bytes through a pair of unix sockets, in the same write lengths'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand help; and not __fish_seen_subcommand_from net vsock vsock-rx packet-tx tcp-rx peers ab render help" -f -a "vsock-rx" -d 'How fast a program receives by vsock: by copying, in mapped windows, sleeping and polling; in a guest as well'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand help; and not __fish_seen_subcommand_from net vsock vsock-rx packet-tx tcp-rx peers ab render help" -f -a "packet-tx" -d 'Sending to a network device, copying and lending: packet sockets, rings, AF_XDP, UDP with MSG_ZEROCOPY and io_uring'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand help; and not __fish_seen_subcommand_from net vsock vsock-rx packet-tx tcp-rx peers ab render help" -f -a "tcp-rx" -d 'Receiving TCP: select and read as iperf does, epoll, io_uring, and the library\'s ways, on 1 to 256 connections'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand help; and not __fish_seen_subcommand_from net vsock vsock-rx packet-tx tcp-rx peers ab render help" -f -a "peers" -d 'zerowire beside other programs that do the same work: dpdk-testpmd, passt, vhost-device-vsock, tcpreplay, iperf3'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand help; and not __fish_seen_subcommand_from net vsock vsock-rx packet-tx tcp-rx peers ab render help" -f -a "ab" -d 'Two builds of this program in turns: what a change of the library costs'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand help; and not __fish_seen_subcommand_from net vsock vsock-rx packet-tx tcp-rx peers ab render help" -f -a "render" -d 'Write the tables and charts of the measurement pages from their JSON'
complete -c zerowire-bench -n "__fish_zerowire_bench_using_subcommand help; and not __fish_seen_subcommand_from net vsock vsock-rx packet-tx tcp-rx peers ab render help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
