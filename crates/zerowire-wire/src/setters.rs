//! Setters of option structs, which other crates can't build as literals (`#[non_exhaustive]`).

/// A setter by value for each of these fields. For the crates of zerowire alone.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($($(#[$when:meta])* $field:ident: $value:ty),* $(,)?) => {
        $(
            #[doc = concat!("The same with this `", stringify!($field), "`, which the field of that name describes.")]
            $(#[$when])*
            #[must_use]
            pub fn $field(mut self, $field: $value) -> Self {
                self.$field = $field;
                self
            }
        )*
    };
}
