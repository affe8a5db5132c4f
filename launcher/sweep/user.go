package sweep

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// asOwner runs what with no more rights to files than their owner has, so that root, in a directory of a user's, cannot be led to do what that
// user could not do himself; on a file system that gives root no rights it has those it needs. Who is not root stays who he is.
func asOwner(uid, gid uint32, what func() error) error {
	if os.Geteuid() != 0 || uid == 0 {
		return what()
	}
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this function
		done <- func() error {
			unix.SetfsgidRetGid(int(gid)) //nolint:errcheck // asked for below: it never fails
			unix.SetfsuidRetUid(int(uid)) //nolint:errcheck // likewise
			if now, _ := unix.SetfsuidRetUid(-1); now != int(uid) {
				return fmt.Errorf("becoming user %d for its files did not work", uid)
			}
			return what()
		}()
	}()
	return <-done
}

// asOurselves is for what has to be done with our own rights within asOwner.
func asOurselves[T any](what func() (T, error)) (result T, err error) {
	done := make(chan struct{})
	go func() { // on another thread than the one that is locked
		defer close(done)
		result, err = what()
	}()
	<-done
	return result, err
}
