//! A QEMU plugin that counts the bytes which a guest's kernel stores: a copy shows, noise of the
//! machine does not.
//!
//! ```text
//! qemu-system-x86_64 -accel tcg -plugin target/release/examples/libguest_stores.so,out=FILE …
//! ```
//! The count is a 64-bit number in the machine's byte order at the beginning of FILE. QEMU maps the
//! file, so whoever reads it reads the count of that moment. QEMU translates a block of guest code
//! and then runs it many times. Each store of a kernel's block calls back (a `rep movs` for each of
//! its parts).
//!
//! Memory: the mapping lives as long as QEMU, so the callbacks' pointer is valid at any time. All
//! virtual CPUs add to the same atomic number.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

/// Length of the file, and of the mapping.
const FILE_BYTES: usize = 4096;

/// `enum qemu_plugin_cb_flags` and `enum qemu_plugin_mem_rw` (QEMU `include/qemu/qemu-plugin.h`).
const CB_NO_REGS: c_int = 0;
const MEM_W: c_int = 2;

/// The version of the plugin interface (`QEMU_PLUGIN_VERSION`); QEMU 9.1 and newer take it.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static qemu_plugin_version: c_int = 4;

/// `struct qemu_plugin_tb`, a block of translated code.
#[repr(C)]
pub struct Block {
    _opaque: [u8; 0],
}

/// `struct qemu_plugin_insn`, an instruction of a block.
#[repr(C)]
pub struct Instruction {
    _opaque: [u8; 0],
}

type OnBlock = extern "C" fn(id: u64, block: *mut Block);
type OnAccess = extern "C" fn(cpu: c_uint, info: u32, address: u64, data: *mut c_void);

unsafe extern "C" {
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: u64, call: OnBlock);
    fn qemu_plugin_tb_n_insns(block: *const Block) -> usize;
    fn qemu_plugin_tb_vaddr(block: *const Block) -> u64;
    fn qemu_plugin_tb_get_insn(block: *const Block, index: usize) -> *mut Instruction;
    fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut Instruction,
        call: OnAccess,
        flags: c_int,
        which: c_int,
        data: *mut c_void,
    );
    safe fn qemu_plugin_mem_size_shift(info: u32) -> c_uint;
}

/// Where the count is; set before the first block is translated.
static COUNT: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// QEMU's entry: `argv` are the words behind the file's name, each `NAME=VALUE`.
///
/// # Safety
/// As QEMU calls it: `argv` are `argc` pointers to strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    _info: *const c_void,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let count = usize::try_from(argc).unwrap_or(0);
    // SAFETY: QEMU passes `argc` pointers to strings, which live until this call returns.
    let words = (0..count).map(|index| unsafe { CStr::from_ptr(*argv.add(index)) });
    let out = words.filter_map(|word| word.to_str().ok()?.strip_prefix("out=")).next_back();
    let mapped = match out {
        Some(path) => map(Path::new(path)).map_err(|error| format!("{path}: {error}")),
        None => Err("out=FILE is missing".to_owned()),
    };
    match mapped {
        Ok(count) => {
            COUNT.store(count, Ordering::Relaxed);
            // SAFETY: the id is the one that QEMU gave this plugin.
            unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, on_block) };
            0
        }
        Err(error) => {
            eprintln!("guest_stores: {error}");
            1
        }
    }
}

fn map(path: &Path) -> std::io::Result<*mut AtomicU64> {
    use rustix::mm::{MapFlags, ProtFlags, mmap};
    let file = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
    file.set_len(FILE_BYTES as u64)?;
    let (access, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping, at an address of the kernel's choice, that is never taken away.
    let address = unsafe { mmap(std::ptr::null_mut(), FILE_BYTES, access, shared, &file, 0)? };
    Ok(address.cast())
}

/// Linux on x86-64 has the upper half of all addresses to itself (Linux
/// `Documentation/arch/x86/x86_64/mm.rst`).
fn is_kernel(address: u64) -> bool {
    address >> 63 == 1
}

extern "C" fn on_block(_id: u64, block: *mut Block) {
    // SAFETY: QEMU's block is valid during this callback.
    let (address, length) = unsafe { (qemu_plugin_tb_vaddr(block), qemu_plugin_tb_n_insns(block)) };
    if !is_kernel(address) {
        return;
    }
    let count = COUNT.load(Ordering::Relaxed).cast();
    for index in 0..length {
        // SAFETY: the index is below the number of instructions; the mapping outlives QEMU's CPUs.
        unsafe {
            let instruction = qemu_plugin_tb_get_insn(block, index);
            qemu_plugin_register_vcpu_mem_cb(instruction, on_store, CB_NO_REGS, MEM_W, count);
        }
    }
}

extern "C" fn on_store(_cpu: c_uint, info: u32, _address: u64, count: *mut c_void) {
    // SAFETY: the pointer is that of the mapping, which is aligned and never goes away.
    let count = unsafe { &*count.cast::<AtomicU64>() };
    count.fetch_add(1 << qemu_plugin_mem_size_shift(info), Ordering::Relaxed);
}
