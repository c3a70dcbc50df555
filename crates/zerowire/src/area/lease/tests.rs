use super::super::{AreaError, AreaOptions, Pages};
use super::*;

fn area(buffer_bytes: usize, buffers: usize) -> Area {
    Area::new(AreaOptions { buffer_bytes, buffers, pages: Pages::Normal }).unwrap()
}

#[test]
fn buffers_go_out_and_come_back() {
    let a = area(100, 2);
    let (mut x, y) = (a.lease().unwrap(), a.lease().unwrap());
    assert!(a.lease().is_none());
    assert_eq!((x.len(), a.free(), y.offset() - x.offset()), (100, 0, 128));
    x.fill(7);
    assert!(y.iter().all(|b| *b == 0), "buffers overlap");
    assert!(x.set_len(3) && !x.set_len(101));
    let f = x.freeze();
    let g = f.clone();
    assert_eq!(&*f, [7, 7, 7]);
    let f = f.thaw().unwrap_err();
    drop((f, y));
    assert_eq!(a.free(), 1);
    assert_eq!(g.thaw().unwrap().capacity(), 100);
    assert_eq!(a.free(), 2);
}

#[test]
fn a_lease_outlives_its_area() {
    let a = area(4096, 1);
    let mut l = a.lease().unwrap();
    drop(a);
    l.fill(1);
    assert_eq!(l[4095], 1);
}

#[test]
fn lengths_are_checked() {
    let new = |buffer_bytes, buffers| Area::new(AreaOptions { buffer_bytes, buffers, pages: Pages::Normal });
    assert!(matches!(new(0, 1), Err(AreaError::BufferBytes(0))));
    assert!(matches!(new(1, 0), Err(AreaError::Buffers(0))));
    assert!(matches!(new(1 << 31, 1), Err(AreaError::BufferBytes(_))));
}

#[test]
fn too_many_huge_pages_are_an_error_that_names_the_pool() {
    let e =
        Area::new(AreaOptions { buffer_bytes: 1 << 30, buffers: 1 << 16, pages: Pages::Huge }).unwrap_err();
    assert!(e.to_string().contains("nr_hugepages"), "{e}");
}
