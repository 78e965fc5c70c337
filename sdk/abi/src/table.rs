//! Definitions that keep what is written in them: a struct its fields' places, types and comments, a list of codes its names.
//!
//! So the list of tables and the C header come from the lines that the compiler reads, and cannot say anything else.

/// Defines a struct that crosses, under its name in C, and `LAYOUT`, what is known of it.
macro_rules! table {
    (
        $c_name:literal;
        $(#[doc = $about:literal])*
        #[repr(C)]
        #[derive($($derived:ident),*)]
        pub struct $table:ident { $($body:tt)* }
    ) => {
        $(#[doc = $about])*
        #[repr(C)]
        #[derive($($derived),*)]
        // As tokens: the derive of the layout report does not look into a type that was parsed before.
        pub struct $table { $($body)* }

        impl $table {
            /// What is known of the struct, for [`TABLES`](crate::layout::TABLES).
            pub(crate) const LAYOUT: $crate::layout::TableLayout = $crate::layout::TableLayout {
                name: stringify!($table),
                c_name: $c_name,
                about: concat!($($about),*),
                size: size_of::<$table>(),
                align: align_of::<$table>(),
                fields: $crate::table::table!(@fields $table { $($body)* }),
            };
        }
    };
    (@fields $table:ident { $($(#[doc = $about:literal])* $visible:vis $field:ident: $type:ty),* $(,)? }) => {
        &[$($crate::layout::FieldLayout {
            name: stringify!($field),
            offset: std::mem::offset_of!($table, $field),
            written: stringify!($type),
            about: concat!($($about),*),
        }),*]
    };
}

/// Defines a module of codes, and `ALL`, the list of them.
macro_rules! codes {
    (
        $(#[doc = $about:literal])*
        pub mod $module:ident {
            $($(#[doc = $said:literal])* pub const $code:ident: u32 = $value:literal;)*
        }
    ) => {
        $(#[doc = $about])*
        pub mod $module {
            $($(#[doc = $said])* pub const $code: u32 = $value;)*

            /// All of them, in order.
            pub const ALL: &[$crate::layout::Code] = &[$($crate::layout::Code {
                name: stringify!($code),
                value: $value,
                about: concat!($($said),*),
            }),*];
        }
    };
}

pub(crate) use {codes, table};
