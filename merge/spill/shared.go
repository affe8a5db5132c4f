package spill

// Several processes sort together: each writes what it has as one run into a file of its own, and one merges the runs.

// AddRun adds a sorted run that another process has written to a file. The file must stay open as long as the outcome is in use.
func (s *Sorter[T, P]) AddRun(file *File, r Run) {
	if r.Count == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs = append(s.runs, run{r, file})
}

// Keep returns where in file the records are, for other processes to read: it writes them there unless they are.
func (s *Sorted[T, P]) Keep(file *File, size int) (Run, error) {
	if s.run.file == file {
		return s.run.Run, nil
	}
	r := Run{file.reserve(s.Len() * int64(size)), s.Len()}
	w := runWriter[T, P]{file: file, size: size, offset: r.Offset}
	for c := s.From(0); ; {
		ok, err := c.Next()
		if err != nil {
			return r, err
		}
		if !ok {
			return r, w.flush()
		}
		if err := w.add(&c.Value); err != nil {
			return r, err
		}
	}
}

// SortedAt is what another process has kept in a file.
func SortedAt[T any, P Record[T]](file *File, size int, r Run) *Sorted[T, P] {
	return &Sorted[T, P]{size: size, run: run{r, file}}
}
