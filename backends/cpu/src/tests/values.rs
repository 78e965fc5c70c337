//! Values by hand.
