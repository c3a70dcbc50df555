use super::*;
use crate::area::{AreaOptions, Pages};

fn area() -> Area {
    Area::new(AreaOptions { buffer_bytes: 4096, buffers: 2, pages: Pages::Normal }).unwrap()
}

#[test]
fn the_kernels_word_is_checked() {
    let cut = AreaCut { area_bytes: 8192, buffer_bytes: 4096, token: 0 };
    let areas = Areas::new(area(), cut);
    let add = |token| areas.add(area(), 8192, || Ok(token)).unwrap().map(|c| c.token);
    for wrong in [0, 1, 1 << AREA_SHIFT | 4096] {
        assert!(add(wrong).is_err(), "{wrong:#x}");
    }
    assert!(areas.add(area(), 8192, || Err(io::Error::from_raw_os_error(libc::EPERM))).unwrap().is_err());
    assert_eq!((areas.count(), areas.buffers(), areas.bytes()), (1, 2, 8192));
    assert_eq!(add(1 << AREA_SHIFT).unwrap(), 1 << AREA_SHIFT);
    assert!(add(1 << AREA_SHIFT).is_err(), "it has that number already");
    assert_eq!((areas.count(), areas.buffers(), areas.bytes()), (2, 4, 16384));
    assert_eq!(
        (areas.after(0).len(), areas.after(1).len(), areas.after(2).len(), areas.after(9).len()),
        (2, 1, 0, 0)
    );
}

#[test]
fn the_share_grows_with_the_areas_up_to_what_was_asked_for() {
    let quarter = |buffers, slots| Share { asked: None, buffers }.of(slots);
    assert_eq!((quarter(4, 4), quarter(20, 20), quarter(20, 320)), (1, 5, 80));
    let eight = |buffers, slots| Share { asked: Some(8), buffers }.of(slots);
    assert_eq!((eight(4, 4), eight(20, 20), eight(20, 320)), (4, 8, 128));
}
