//! Pipes that nobody reads.

use std::io::{PipeReader, PipeWriter, Write, pipe};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// The least that a pipe keeps.
pub const PIPE_BYTES: usize = 4096;

/// A pipe that keeps as little as one can.
pub fn small_pipe() -> (PipeReader, PipeWriter) {
    let (reader, writer) = pipe().expect("a pipe");
    rustix::pipe::fcntl_setpipe_size(&writer, PIPE_BYTES).expect("a smaller pipe");
    (reader, writer)
}

/// Fills a pipe to the brim; returns how many bytes that took.
pub fn fill(pipe: &mut PipeWriter) -> usize {
    let flags = fcntl_getfl(&*pipe).expect("its flags");
    fcntl_setfl(&*pipe, flags | OFlags::NONBLOCK).expect("a pipe");
    let mut filled = 0;
    while let Ok(count) = pipe.write(&[b'.'; 1000]) {
        filled += count;
    }
    while pipe.write(b".").is_ok() {
        filled += 1;
    }
    // The flag is the program's, too.
    fcntl_setfl(&*pipe, flags).expect("a pipe");
    filled
}
