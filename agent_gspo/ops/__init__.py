"""Operations on arrays that have several implementations, one for each kind of device."""
