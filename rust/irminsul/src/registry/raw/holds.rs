//! Keys that are asked for again and again -> pinned values, pinned once until all is done.
//!
//! Knows nothing of the values. A lookup sees each value as it was when it first asked.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ptr::NonNull;

use super::super::spread::Spread;
use super::slab::Pin;

/// Pins that only grow in number; what a key gave once, it gives again.
#[derive(Debug)]
pub(crate) struct Holds<'a, T> {
    pins: RefCell<HashMap<u32, Option<Pin<'a, T>>, Spread>>,
    /// The last answer: most questions are asked several times in a row.
    last: Cell<Option<(u32, NonNull<T>)>>,
}

impl<T> Default for Holds<'_, T> {
    fn default() -> Self {
        Self {
            pins: RefCell::default(),
            last: Cell::new(None),
        }
    }
}

impl<'a, T> Holds<'a, T> {
    /// The value of a key; `pin` finds it when it is asked for first.
    pub(crate) fn get(&self, key: u32, pin: impl FnOnce() -> Option<Pin<'a, T>>) -> Option<&T> {
        if let Some((last, value)) = self.last.get()
            && last == key
        {
            // Safety: as below.
            return Some(unsafe { value.as_ref() });
        }
        let mut pins = self.pins.borrow_mut();
        let value = NonNull::from(&**pins.entry(key).or_insert_with(pin).as_ref()?);
        self.last.set(Some((key, value)));
        // Safety: the value lies in the slab, not in the map, and its pin stays in the map as long as
        // `self` exists, which the returned reference borrows.
        Some(unsafe { value.as_ref() })
    }
}
