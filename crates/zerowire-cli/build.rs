//! Has the linker make the program smaller. It packs relative relocations (DT_RELR, which glibc
//! reads from 2.36 on), and has functions of the same instructions once, which takes LLD: Rust
//! links by it on x86-64 from 1.90 on.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
}
