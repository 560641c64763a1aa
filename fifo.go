package rebase

// A fifo is a queue over a ring that grows and is used again, so that a steady
// flow through it allocates nothing. Its zero value is empty and ready.
type fifo[T any] struct {
	ring []T
	head int
	n    int
}

func (f *fifo[T]) len() int { return f.n }

func (f *fifo[T]) push(v T) {
	if f.n == len(f.ring) {
		grown := make([]T, max(8, 2*f.n))
		for i := range f.n {
			grown[i] = f.ring[(f.head+i)%len(f.ring)]
		}
		f.ring, f.head = grown, 0
	}
	f.ring[(f.head+f.n)%len(f.ring)] = v
	f.n++
}

// pop takes the oldest; it panics when there is none.
func (f *fifo[T]) pop() T {
	var zero T
	v := f.ring[f.head]
	f.ring[f.head] = zero
	f.head = (f.head + 1) % len(f.ring)
	f.n--
	return v
}
