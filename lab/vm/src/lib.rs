//! Stock Linux guests under QEMU, for tests of vhost-user devices.
//!
//! A guest boots once for each kernel, QEMU and machine; its state is saved to a file. Each test
//! restores from there in about 0.3 s, then plugs the device it tests over QMP. Commands run in the
//! guest through a shell on its serial line.
//!
//! ```text
//!  test ──run──> Serial ──ttyS0──> init (busybox shell)
//!       ──plug─> Qmp    ──unix───> QEMU ──vhost-user──> BackendProcess (zerowire net)
//!                                                          │ tap
//!                                                        Netns (own network namespace)
//!                                       ──vhost-user──> BackendProcess (zerowire vsock)
//!                                                          │ unix sockets
//!                                                        vsock::host (in the test)
//! ```
//!
//! Whatever a test makes (processes, namespaces, folders) is removed when its value
//! is dropped, and on Ctrl-C; processes also die with the test program. What must be there before
//! (kernels, QEMU 10) is put into the cache by `scripts/install.sh vm`.

pub mod assets;
pub mod backend;
pub mod balloon;
pub mod by_hand;
pub mod command;
pub mod cpio;
pub mod debian;
pub mod device;
pub mod guest;
pub mod initrd;
pub mod interrupt;
pub mod lab;
pub mod libvirt;
pub mod machine;
pub mod modules;
pub mod netns;
pub mod qmp;
pub mod runner;
pub mod send;
pub mod serial;
pub mod snapshot;
pub mod stores;
pub mod tls;
pub mod vsock;
pub mod vsock_device;
pub mod xdp;

/// Prints how a program in a guest ended, in the words that the checks read.
pub fn report(result: anyhow::Result<String>) -> std::process::ExitCode {
    match result {
        Ok(text) => {
            println!("ok {text}");
            std::process::ExitCode::SUCCESS
        }
        Err(error) => {
            println!("failed: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
