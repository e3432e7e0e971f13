//! Values that the process used last, which are made once for many uses.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A limited number of values by their keys.
pub(crate) struct Recent<K, V> {
    most: usize,
    /// The one used last at the front.
    values: Mutex<VecDeque<(K, V)>>,
}

impl<K: PartialEq, V: Clone> Recent<K, V> {
    pub const fn new(most: usize) -> Self {
        Recent {
            most,
            values: Mutex::new(VecDeque::new()),
        }
    }

    /// The value of a key: a kept one, or a new one. A failure is not kept.
    pub fn get<E>(&self, key: K, make: impl FnOnce() -> Result<V, E>) -> Result<V, E> {
        let known = take(&mut self.lock(), &key);
        // Other threads need other values meanwhile.
        let value = match known {
            Some(value) => value,
            None => make()?,
        };
        let mut values = self.lock();
        // Another thread may have made it, too.
        take(&mut values, &key);
        values.truncate(self.most - 1);
        values.push_front((key, value.clone()));
        Ok(value)
    }

    /// Nothing between two changes of the list panics.
    fn lock(&self) -> MutexGuard<'_, VecDeque<(K, V)>> {
        self.values.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn take<K: PartialEq, V>(values: &mut VecDeque<(K, V)>, key: &K) -> Option<V> {
    let found = values.iter().position(|(of, _)| of == key)?;
    values.remove(found).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::Recent;

    #[test]
    fn the_one_used_least_recently_is_made_again() {
        let recent = Recent::new(2);
        let is_made = |key| {
            let mut is_made = false;
            let value = recent.get(key, || {
                is_made = true;
                Ok::<_, ()>(10 * key)
            });
            assert_eq!(value, Ok(10 * key));
            is_made
        };
        let made: Vec<_> = [1, 2, 1, 3, 1, 2].into_iter().map(is_made).collect();
        assert_eq!(made, [true, true, false, true, false, true]);
    }

    #[test]
    fn a_failure_is_not_kept() {
        let recent = Recent::new(2);
        assert_eq!(recent.get(1, || Err("no")), Err("no"));
        assert_eq!(recent.get(1, || Ok::<_, &str>(10)), Ok(10));
    }
}
