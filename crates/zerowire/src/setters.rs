//! Setters of option structs.

/// A setter by value for each of these fields.
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

pub(crate) use setters;
