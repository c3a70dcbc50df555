use super::{Argument, refuse, refuse_if, refuse_syscall};

/// The error of a fcntl(2) of this thread that succeeds without a filter.
fn fcntl(command: libc::c_int, argument: libc::c_int) -> Option<i32> {
    // SAFETY: takes numbers only.
    let r = unsafe { libc::fcntl(0, command, argument) };
    if r < 0 { std::io::Error::last_os_error().raw_os_error() } else { None }
}

fn on_a_thread(test: impl FnOnce() + Send + 'static) {
    std::thread::spawn(test).join().unwrap_or_else(|e| std::panic::resume_unwind(e));
}

#[test]
fn any_arguments() {
    on_a_thread(|| {
        assert_eq!(fcntl(libc::F_GETFD, 0), None);
        refuse(libc::SYS_fcntl, libc::ENOLCK);
        assert_eq!(fcntl(libc::F_GETFD, 0), Some(libc::ENOLCK));
    });
    assert_eq!(fcntl(libc::F_GETFD, 0), None, "another thread");
}

#[test]
fn one_argument() {
    on_a_thread(|| {
        refuse_if(libc::SYS_fcntl, 1, Argument::Is(libc::F_GETFL as u32), libc::ENOLCK);
        assert_eq!((fcntl(libc::F_GETFD, 0), fcntl(libc::F_GETFL, 0)), (None, Some(libc::ENOLCK)));
    });
    on_a_thread(|| {
        refuse_if(libc::SYS_fcntl, 2, Argument::Has(0x30), libc::ENOLCK);
        let errors = [0, 0x8, 0x10, 0x21].map(|bits| fcntl(libc::F_GETFD, bits));
        assert_eq!(errors, [None, None, Some(libc::ENOLCK), Some(libc::ENOLCK)]);
    });
}

#[test]
fn all_of_several_arguments() {
    on_a_thread(|| {
        let both = [(1, Argument::Is(libc::F_GETFD as u32)), (2, Argument::Is(7))];
        refuse_syscall(libc::SYS_fcntl, &both, libc::ENOLCK).expect("a filter");
        let errors = [(libc::F_GETFD, 7), (libc::F_GETFD, 8), (libc::F_GETFL, 7)].map(|(c, a)| fcntl(c, a));
        assert_eq!(errors, [Some(libc::ENOLCK), None, None]);
    });
}
