"""The recorded schedule with other collectives: taken apart, cut, and put together again."""
