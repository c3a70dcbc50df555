use super::*;

#[test]
fn columns_line_up() {
    let mut table = Table::new(["case", "ns"]);
    table.row(["tx 64 B".into(), "5".into()]);
    table.row(["rx".into(), "1234".into()]);
    table.row(["short".into()]);
    assert_eq!(table.render(), "case       ns\n-------------\ntx 64 B     5\nrx       1234\nshort\n");
}

#[test]
fn a_wide_table_comes_in_parts_that_have_the_labels() {
    let mut table = Table::new(["case", "set", "ns", "min..max", "quartiles"]).labels(2);
    table.row(["tx".into(), "hot".into(), "5".into(), "1..12".into(), "2..3".into()]);
    let whole = "case  set  ns  min..max  quartiles\n----------------------------------\n\
                     tx    hot   5     1..12       2..3\n";
    assert_eq!(table.render_within(34), whole);
    let parts = "case  set  ns  min..max\n-----------------------\ntx    hot   5     1..12\n\n\
                     case  set  quartiles\n--------------------\ntx    hot       2..3\n";
    for columns in [23, 29] {
        assert_eq!(table.render_within(columns), parts);
    }
    // A column that does not fit stands alone.
    assert_eq!(table.render_within(10).lines().filter(|l| l.starts_with("case")).count(), 3);
    assert_eq!(Table::new(["a"]).render_within(0), "a\n-\n");
    assert_eq!(Table::new(["a", "b"]).labels(2).render_within(0), "a  b\n----\n");
}

#[test]
fn labels_are_above_their_rows_where_that_makes_fewer_parts() {
    let mut table = Table::new(["case", "way", "ns", "quartiles"]).labels(2);
    for (case, way) in [("a long case", "x"), ("a long case", "y"), ("b", "x")] {
        table.row([case.into(), way.into(), "5".into(), "2..3".into()]);
    }
    let above = "  way  ns  quartiles\n--------------------\n\
                 case: a long case\n  x     5       2..3\n  y     5       2..3\n\
                 case: b\n  x     5       2..3\n";
    assert_eq!(table.render_within(24), above);
    assert_eq!(table.render_within(31).lines().filter(|l| l.starts_with("a long case")).count(), 2);
}

#[test]
fn figures_and_lengths() {
    assert_eq!(figure(1.2345), "1.23");
    assert_eq!(figure(12.345), "12.3");
    assert_eq!(figure(1234.5), "1234");
    assert_eq!(bytes(64 << 20), "64 MiB");
    assert_eq!(bytes(256 << 10), "256 KiB");
    assert_eq!(bytes(1500), "1500 B");
}
